package groups

import "testing"

// TestGroups counts against every place at which a request can end.
func TestGroups(t *testing.T) {
	for group := 1; group <= 4; group++ {
		for kept := range 12 {
			first, last := 0, 0
			for pages := kept; pages < kept+2*group; pages++ {
				head, tail := map[int]bool{}, map[int]bool{}
				for i := range kept {
					head[i/group] = true
					tail[(pages-1-i)/group] = true
				}
				first, last = max(first, len(head)), max(last, len(tail))
			}
			if First(kept, group) != first || Last(kept, group) != last {
				t.Errorf("%d pages in groups of %d: %d first and %d last groups, want %d and %d", kept, group, First(kept, group), Last(kept, group), first, last)
			}
		}
	}
}
