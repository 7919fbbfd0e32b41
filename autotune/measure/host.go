package measure

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/runtime/device"
)

// Host keeps one measuring child and starts a fresh one whenever a candidate took it down.
type Host struct {
	// Command makes a child's command: the same binary with the hidden verb.
	Command func(ctx context.Context) *exec.Cmd
	// Timeout is how long one trial may take before the child is killed and the candidate recorded as a hang.
	Timeout time.Duration

	child *child
	// Restarts counts children after the first.
	Restarts int
}

type child struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	lines  chan []byte // closed when the child's output ends
	stderr *tail
	info   device.Info
}

// Info starts a child if there is none and returns the device that it measures on.
func (h *Host) Info(ctx context.Context) (device.Info, error) {
	if err := h.start(ctx); err != nil {
		return device.Info{}, err
	}
	return h.child.info, nil
}

// Do measures one request. A child that dies or hangs is replaced and the request tried once more; after the second time the
// candidate is blamed. The error is not nil only when no child can be had, or the context ended.
func (h *Host) Do(ctx context.Context, r Request) (Response, error) {
	var first string
	for attempt := 1; ; attempt++ {
		resp, err := h.try(ctx, r)
		if err != nil {
			return Response{}, err
		}
		if !deadly(resp.Class) {
			if first != "" {
				resp.Message = strings.TrimPrefix(resp.Message+"; at the first try: "+first, "; ")
			}
			return resp, nil
		}
		h.stop()
		if attempt == 2 {
			return resp, nil
		}
		first = resp.Class + ": " + resp.Message
	}
}

// thoroughTimes is how many times as long as a trial a thorough check may take.
const thoroughTimes = 5

func deadly(class string) bool {
	switch store.Class(class) {
	case store.Fault, store.Hang, store.Crash:
		return true
	}
	return false
}

func (h *Host) try(ctx context.Context, r Request) (Response, error) {
	if err := h.start(ctx); err != nil {
		return Response{}, err
	}
	c := h.child
	line, err := json.Marshal(r)
	if err != nil {
		return Response{}, fmt.Errorf("BUG: measure: request: %w", err)
	}
	if _, err := c.in.Write(append(line, '\n')); err != nil {
		return c.died("it did not take the request"), nil
	}
	timeout := h.Timeout
	if r.Thorough {
		timeout *= thoroughTimes
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return Response{}, ctx.Err()
	case <-timer.C:
		return Response{Class: string(store.Hang), Message: fmt.Sprintf("no answer within %v", timeout)}, nil
	case answer, open := <-c.lines:
		if !open {
			return c.died("it ended without an answer"), nil
		}
		var resp Response
		if err := json.Unmarshal(answer, &resp); err != nil {
			return c.died(fmt.Sprintf("it answered %.80q", answer)), nil
		}
		return resp, nil
	}
}

// died collects how the child ended. One whose output ended is given a moment to exit by itself, so that its own status is told.
func (c *child) died(what string) Response {
	timer := time.AfterFunc(2*time.Second, func() { _ = c.cmd.Process.Kill() })
	defer timer.Stop()
	_ = c.in.Close()
	err := c.cmd.Wait()
	message := what
	if err != nil {
		message += ": " + err.Error()
	}
	if last := c.stderr.String(); last != "" {
		message += ": " + last
	}
	return Response{Class: string(store.Crash), Message: message}
}

func (h *Host) start(ctx context.Context) error {
	if h.child != nil {
		return nil
	}
	c := &child{cmd: h.Command(ctx), lines: make(chan []byte), stderr: &tail{}}
	c.cmd.Stderr = c.stderr
	c.cmd.SysProcAttr = childAttributes()
	in, err := c.cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("measuring child: %w", err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("measuring child: %w", err)
	}
	if err := c.cmd.Start(); err != nil {
		return fmt.Errorf("measuring child: %w", err)
	}
	c.in = in
	go c.read(out)
	var hello Hello
	select {
	case <-ctx.Done():
		c.kill()
		return ctx.Err()
	case line, open := <-c.lines:
		if !open {
			return fmt.Errorf("measuring child: %s", c.died("it ended at its start").Message)
		}
		if err := json.Unmarshal(line, &hello); err != nil {
			c.kill()
			return fmt.Errorf("measuring child: it greeted with %.80q", line)
		}
	}
	if hello.Error != "" {
		c.kill()
		return errors.New(hello.Error)
	}
	c.info = hello.Info
	h.child = c
	return nil
}

func (c *child) read(out io.Reader) {
	defer close(c.lines)
	r := bufio.NewReaderSize(out, 1<<16)
	for {
		line, err := r.ReadBytes('\n')
		if err != nil {
			return
		}
		c.lines <- line
	}
}

func (c *child) kill() {
	_ = c.cmd.Process.Kill()
	go func() {
		for range c.lines { // lets the reader end
		}
	}()
	_ = c.cmd.Wait()
}

func (h *Host) stop() {
	if h.child != nil {
		h.child.kill()
		h.child = nil
		h.Restarts++
	}
}

// Running tells whether there is a child.
func (h *Host) Running() bool { return h.child != nil }

// Close ends the child.
func (h *Host) Close() {
	if h.child != nil {
		_ = h.child.in.Close()
		h.child.kill()
		h.child = nil
	}
}

// tail keeps the last lines that a child wrote to its standard error.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	if len(t.text) > 4000 {
		t.text = t.text[len(t.text)-4000:]
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(t.text)), "\n")
	return strings.Join(lines[max(0, len(lines)-3):], " | ")
}
