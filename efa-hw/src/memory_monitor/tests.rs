//! Tests of the monitor with the kernel's userfaultfd. Where userfaultfd is not permitted, the
//! tests print a message and end.

use super::*;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

fn monitor() -> Option<Userfault> {
    match Userfault::open() {
        Ok(monitor) => Some(monitor),
        Err(error) => {
            efa_testing::skip(error);
            None
        }
    }
}

/// Maps pages, at any address or in place of others.
fn map(at: u64, pages: usize, flags: i32) -> u64 {
    let fixed = if at == 0 { 0 } else { libc::MAP_FIXED };
    // SAFETY: anywhere, or in the place of pages that the test mapped and has no reference to.
    let start = unsafe {
        let at = at as usize as *mut libc::c_void;
        let flags = flags | libc::MAP_ANONYMOUS | fixed;
        libc::mmap(at, pages * PAGE, READ_WRITE, flags, -1, 0)
    };
    assert_ne!(start, libc::MAP_FAILED);
    start as u64
}

fn unmap(start: u64, pages: usize) {
    // SAFETY: pages that the test mapped and has no reference to.
    let result = unsafe { libc::munmap(start as usize as *mut libc::c_void, pages * PAGE) };
    assert_eq!(result, 0);
}

fn slice(start: u64, pages: usize) -> UserSlice {
    UserSlice::new(start, pages * PAGE)
}

fn changes(monitor: &mut Userfault) -> (bool, Vec<Change>) {
    let mut found = Vec::new();
    let is_settled = monitor.changes(|change| found.push(change));
    (is_settled, found)
}

#[test]
fn calls_that_remove_pages_report_before_returning() {
    let Some(mut monitor) = monitor() else { return };
    let start = map(0, 8, libc::MAP_PRIVATE);
    assert!(monitor.watch(slice(start, 8)), "private anonymous memory");
    let page = |number: u64| start + number * PAGE as u64;
    let place = |number| page(number) as usize as *mut libc::c_void;
    assert_eq!(changes(&mut monitor), (true, vec![]));
    let one = |number, kind| {
        let change = Change {
            start: page(number),
            end: page(number + 1),
            kind,
        };
        (true, vec![change])
    };

    unmap(page(0), 1);
    assert_eq!(changes(&mut monitor), one(0, ChangeKind::Done), "munmap");
    map(page(1), 1, libc::MAP_PRIVATE);
    assert_eq!(changes(&mut monitor), one(1, ChangeKind::Done), "MAP_FIXED");
    // SAFETY: pages that the test mapped and has no reference to.
    unsafe { assert_eq!(libc::madvise(place(2), PAGE, libc::MADV_DONTNEED), 0) };
    let expected = one(2, ChangeKind::Coming);
    assert_eq!(changes(&mut monitor), expected, "MADV_DONTNEED");
    let target = map(0, 1, libc::MAP_PRIVATE);
    let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
    // SAFETY: as above.
    let moved = unsafe {
        libc::mremap(
            place(3),
            PAGE,
            PAGE,
            how,
            target as usize as *mut libc::c_void,
        )
    };
    assert_eq!(moved as u64, target);
    let (is_settled, found) = changes(&mut monitor);
    assert!(is_settled);
    let of_three = one(3, ChangeKind::Done).1;
    assert!(found.starts_with(&of_three), "mremap: {found:?}");
    // The page is still watched at its new address.
    unmap(target, 1);
    assert!(!changes(&mut monitor).1.is_empty());
    // Memory that is mapped in place of unmapped memory is not watched.
    map(page(0), 1, libc::MAP_PRIVATE);
    unmap(page(0), 1);
    assert_eq!(changes(&mut monitor), (true, vec![]));
    unmap(page(4), 4);
    assert_eq!(changes(&mut monitor).1.len(), 1);
}

/// Memory whose changes the kernel does not report, or that is not mapped.
#[test]
fn only_private_anonymous_memory_is_watched() {
    let Some(mut monitor) = monitor() else { return };
    let shared = map(0, 2, libc::MAP_SHARED);
    assert!(!monitor.watch(slice(shared, 2)), "shared");
    let private = map(0, 3, libc::MAP_PRIVATE);
    map(private + PAGE as u64, 1, libc::MAP_SHARED);
    assert!(!monitor.watch(slice(private, 3)), "shared in the middle");
    assert!(monitor.watch(slice(private, 1)));
    unmap(private + PAGE as u64, 1);
    assert!(!monitor.watch(slice(private, 3)), "a hole");
    let nowhere = UserSlice::new(u64::MAX - 10, 100);
    assert!(!monitor.watch(nowhere));
    // SAFETY: the call only returns a number.
    let text = is_private_anonymous as *const () as u64;
    let pages = whole_pages(UserSlice::new(text, 1));
    let (start, end) = pages.unwrap();
    assert!(!is_private_anonymous(start, end).unwrap(), "a file");
    unmap(shared, 2);
}

/// One thread unmaps pages. The other thread finds the removed pages before the calls that unmap
/// them return: their reports have arrived, or are pending.
#[test]
fn changes_are_pending_from_effect_to_report() {
    let Some(mut monitor) = monitor() else { return };
    const PAGES: u64 = 2000;
    let start = map(0, PAGES as usize, libc::MAP_PRIVATE);
    assert!(monitor.watch(slice(start, PAGES as usize)));
    let is_gone = |page: u64| {
        let (mut resident, at) = (0, start + page * PAGE as u64);
        // SAFETY: reads no memory but fills one byte.
        let result = unsafe { libc::mincore(at as usize as *mut _, PAGE, &raw mut resident) };
        result != 0
    };
    std::thread::scope(|scope| {
        scope.spawn(|| (0..PAGES).for_each(|page| unmap(start + page * PAGE as u64, 1)));
        let (mut reported, begin) = (0, Instant::now());
        while reported < PAGES {
            let first_known = reported;
            let gone = (first_known..PAGES)
                .take_while(|page| is_gone(*page))
                .count() as u64;
            let (is_settled, found) = changes(&mut monitor);
            // The last report may cover several changes, if there was no room.
            if let Some(last) = found.last() {
                reported = (last.end - start) / PAGE as u64;
            }
            let seen = first_known + gone;
            assert!(!is_settled || reported >= seen, "{reported} of {seen}");
            assert!(begin.elapsed() < Duration::from_secs(100), "{reported}");
        }
    });
    assert_eq!(changes(&mut monitor), (true, vec![]));
}

#[test]
fn excess_changes_are_merged() {
    let change = |start, kind| Change {
        start,
        end: start + 1,
        kind,
    };
    let mut reported = ReportedChanges {
        changes: Box::new([change(0, ChangeKind::Done); ROOM]),
        count: 0,
    };
    let all = (0..ROOM as u64 + 3).map(|number| change(10 * number, ChangeKind::Done));
    all.for_each(|change| reported.add(change));
    reported.add(change(5, ChangeKind::Coming));
    assert_eq!(reported.count, ROOM);
    let expected = Change {
        start: 5,
        end: 10 * (ROOM as u64 + 2) + 1,
        kind: ChangeKind::Coming,
    };
    assert_eq!(reported.changes[ROOM - 1], expected);
}

#[test]
fn a_child_dropping_the_monitor_spares_the_parent() {
    let Some(mut monitor) = monitor() else { return };
    let start = map(0, 2, libc::MAP_PRIVATE);
    assert!(monitor.watch(slice(start, 2)), "private anonymous memory");
    // SAFETY: the child drops its copy, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(monitor);
        // SAFETY: ends the child.
        unsafe { libc::_exit(7) };
    }
    let mut status = 0;
    // SAFETY: the status is valid for a write.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(libc::WEXITSTATUS(status), 7, "{status:#x}");
    // The call returns only once the thread has read the report.
    unmap(start, 2);
    assert_eq!(changes(&mut monitor).1.len(), 1);
}

#[test]
fn lines_of_maps_are_read() {
    let parse = |line| Mapping::parse(line).map(|found| (found.start, found.is_private_anonymous));
    let lines = [
        ("7f00-8000 rw-p 00000000 00:00 0 ", Some((0x7f00, true))),
        (
            "7f00-8000 rw-p 00000000 00:00 0                          [heap]\n",
            Some((0x7f00, true)),
        ),
        (
            "7f00-8000 rw-s 00000000 00:01 0    /dev/zero (deleted)",
            Some((0x7f00, false)),
        ),
        (
            "7f00-8000 rw-p 00000000 00:0f 12   /anon_hugepage (deleted)",
            Some((0x7f00, false)),
        ),
        ("7f00 rw-p", None),
        ("", None),
    ];
    for (line, expected) in lines {
        assert_eq!(parse(line), expected, "{line}");
    }
}
