package nvrtc

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// tree makes empty files under a folder.
func tree(t *testing.T, dir string, files ...string) string {
	t.Helper()
	for _, f := range files {
		f = filepath.Join(dir, f)
		if err := errors.Join(os.MkdirAll(filepath.Dir(f), 0o755), os.WriteFile(f, nil, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestDiscoverOrder(t *testing.T) {
	wheelFiles := []string{"nvidia/cu13/lib/libnvrtc.so.13", "nvidia/cu13/lib/libnvrtc-builtins.so.13.0", "nvidia/cu13/include/cuda_fp16.h"}
	project := t.TempDir()
	tree(t, filepath.Join(project, ".kvloom/toolchain"), wheelFiles...)
	deep := filepath.Join(project, "a/b")
	if err := os.MkdirAll(deep, 0o755); err != nil {
		t.Fatal(err)
	}
	home := tree(t, t.TempDir(), "lib64/libnvrtc.so", "lib64/libnvrtc.so.12", "lib64/libnvrtc.so.13", "lib64/libnvrtc-builtins.so.13.0", "include/cuda_fp16.h")
	bare := tree(t, t.TempDir(), "libnvrtc.so.13", "libnvrtc-builtins.so.13.0")
	alone := tree(t, t.TempDir(), "libnvrtc.so.13")

	tests := []struct {
		name, env, wd, cudaHome string
		want                    Toolchain // without Tried
		fails, reason           string
	}{
		{name: "project above the working directory", wd: deep, cudaHome: home, reason: "the project's own beats CUDA_HOME",
			want: Toolchain{Origin: "project toolchain", Library: filepath.Join(project, ".kvloom/toolchain/nvidia/cu13/lib/libnvrtc.so.13"),
				Builtins: filepath.Join(project, ".kvloom/toolchain/nvidia/cu13/lib/libnvrtc-builtins.so.13.0"), Include: filepath.Join(project, ".kvloom/toolchain/nvidia/cu13/include")}},
		{name: "CUDA_HOME", wd: t.TempDir(), cudaHome: home, reason: "the newest of several libraries",
			want: Toolchain{Origin: "CUDA_HOME", Library: filepath.Join(home, "lib64/libnvrtc.so.13"), Builtins: filepath.Join(home, "lib64/libnvrtc-builtins.so.13.0"), Include: filepath.Join(home, "include")}},
		{name: "KVLOOM_NVRTC a file", env: filepath.Join(bare, "libnvrtc.so.13"), wd: deep, cudaHome: home, reason: "named by the user; headers come from the next place that has them",
			want: Toolchain{Origin: "KVLOOM_NVRTC", Library: filepath.Join(bare, "libnvrtc.so.13"), Builtins: filepath.Join(bare, "libnvrtc-builtins.so.13.0"), Include: filepath.Join(project, ".kvloom/toolchain/nvidia/cu13/include")}},
		{name: "KVLOOM_NVRTC wrong", env: "/nowhere", wd: deep, cudaHome: home, fails: "KVLOOM_NVRTC: /nowhere", reason: "what the user named is not replaced in silence"},
		{name: "no builtins", env: alone, wd: deep, fails: "without libnvrtc-builtins", reason: "its first compilation would fail"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Chdir(tt.wd)
			t.Setenv("KVLOOM_NVRTC", tt.env)
			t.Setenv("CUDA_HOME", tt.cudaHome)
			t.Setenv("PATH", "") // no python3, so that this machine's packages do not count
			got, err := Discover()
			if tt.fails != "" {
				if err == nil || !strings.Contains(err.Error(), tt.fails) {
					t.Fatalf("error %v: want one with %q (%s)", err, tt.fails, tt.reason)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if last := got.Tried[len(got.Tried)-1]; last.Result != "found" || last.Origin != tt.want.Origin {
				t.Errorf("the last attempt is %v, want the one found", last)
			}
			got.Tried = nil
			if d := cmp.Diff(tt.want, *got); d != "" {
				t.Errorf("%s (-want +got):\n%s", tt.reason, d)
			}
		})
	}
}
