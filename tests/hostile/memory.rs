//! The memory that a thread takes, counted by the allocator of this binary.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Counting;

thread_local! {
    /// What the thread holds, at most held, and took at once, since the start; nothing counts elsewhere.
    static HELD: Cell<(bool, isize, isize, usize)> = const { Cell::new((false, 0, 0, 0)) };
}

/// Counts from here on in this thread.
pub fn start() {
    HELD.set((true, 0, 0, 0));
}

/// The largest allocation since the start, and the most that was held at a time, in bytes.
pub fn end() -> (usize, usize) {
    let (_, _, most, largest) = HELD.replace((false, 0, 0, 0));
    (largest, most.max(0) as usize)
}

fn count(bytes: isize) {
    // A thread that is ending has no counters.
    let _ = HELD.try_with(|held| {
        let (is_on, now, most, largest) = held.get();
        if is_on {
            let now = now + bytes;
            held.set((true, now, most.max(now), largest.max(bytes.max(0) as usize)));
        }
    });
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as the caller vouches for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as the caller vouches for.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as the caller vouches for.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: as the caller vouches for.
        unsafe { System.realloc(at, layout, size) }
    }
}
