package cli

import (
	"encoding/json"
	"image"
	_ "image/png"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	tuningreport "github.com/kvloom/kvloom/autotune/report"
)

func TestExplain(t *testing.T) {
	db := testDB(t, 1)
	text := command(t, "explain", "page_score", "1024x1", "--db", db)
	for _, want := range []string{"6 candidates were measured, 5 are right; this one is the fastest", "default", "limited by", "runners-up", "1 wrong, such as", "one element of 40"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	var e tuningreport.Explanation
	if err := json.Unmarshal([]byte(command(t, "explain", "page_score", "1024x1", "--db", db, "--json")), &e); err != nil {
		t.Fatal(err)
	}
	if e.MedianUS != 5 || e.DefaultUS != 10 || e.RoofTBPerS != 4.8 || e.Occupancy.Warps == 0 || len(e.RunnersUp) != 4 || e.Bytes == 0 {
		t.Errorf("%+v", e)
	}
}

// The page is whole, needs no network, and holds every part.
func TestReport(t *testing.T) {
	old, now := testDB(t, 1.2), testDB(t, 1)
	path := filepath.Join(t.TempDir(), "r.html")
	command(t, "report", now, "-o", path, "--baseline", old)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	page := string(b)
	for _, want := range []string{"Chosen kernels", "Roofline", "Convergence", "Parameters", "Trials by outcome", "Environment", "Against trials.db", "FASTER", "<svg", "prefers-color-scheme: dark", "width=device-width", "NVIDIA H200"} {
		if !strings.Contains(page, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	if m := regexp.MustCompile(`(?i)(src|href)\s*=|https?://|@import|url\(`).FindString(page); m != "" {
		t.Errorf("the page refers to something outside: %q", m)
	}
	shots(t, path)
}

// shots opens the page in headless Chromium, in light and dark and on a phone, and looks at pixels: something is drawn, the background is
// that of the scheme, and nothing makes the phone's page wider than its screen. KVLOOM_SHOTS=DIR keeps the pictures.
func shots(t *testing.T, path string) {
	browser := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "chrome-headless-shell"} {
		if found, err := exec.LookPath(name); err == nil && browser == "" {
			browser = found
		}
	}
	if browser == "" {
		t.Skip("no Chromium here to open the page in (apt-get install chromium); everything else of the page was tested")
	}
	dir := os.Getenv("KVLOOM_SHOTS")
	if dir == "" {
		dir = t.TempDir()
	}
	for _, tt := range []struct {
		name, size string
		dark       bool
	}{{"light", "1200,1600", false}, {"dark", "1200,1600", true}, {"phone", "500,1600", false}} {
		t.Run(tt.name, func(t *testing.T) {
			shot := filepath.Join(dir, tt.name+".png")
			args := []string{"--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--user-data-dir=" + t.TempDir(), "--window-size=" + tt.size, "--screenshot=" + shot}
			if tt.dark {
				args = append(args, "--blink-settings=preferredColorScheme=0", "--force-dark-mode")
			}
			cmd := exec.CommandContext(t.Context(), browser, append(args, "file://"+path)...)
			cmd.WaitDelay = time.Second
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			f, err := os.Open(shot)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			img, _, err := image.Decode(f)
			if err != nil {
				t.Fatal(err)
			}
			background, _, _, _ := img.At(2, 2).RGBA()
			if dark := background>>8 < 0x40; dark != tt.dark {
				t.Errorf("background %#x; dark is %v", background>>8, tt.dark)
			}
			drawn := 0
			for y := 0; y < img.Bounds().Dy(); y += 3 {
				for x := 0; x < img.Bounds().Dx(); x += 3 {
					if r, _, _, _ := img.At(x, y).RGBA(); r>>8 > background>>8+0x30 || r>>8+0x30 < background>>8 {
						drawn++
					}
				}
			}
			if drawn < 500 {
				t.Errorf("%d pixels differ from the background", drawn)
			}
		})
	}
}
