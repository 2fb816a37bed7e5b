//! The ring on disks that are fine, full, or broken.

use super::*;

const LIMIT: u64 = 16 * FILE_SIZES.0;

/// A line of a kilobyte.
fn line(number: usize) -> Vec<u8> {
    format!("{number:01023}\n").into_bytes()
}

fn files(directory: &Path) -> usize {
    fs::read_dir(directory).unwrap().count() - 1
}

#[test]
fn oldest_file_is_removed_and_its_lines_are_counted() {
    let directory = tempfile::tempdir().unwrap();
    let mut ring = Ring::open(directory.path(), LIMIT).unwrap();
    let overwritten: u64 = (0..2000).map(|number| ring.append(&line(number)).unwrap().overwritten).sum();
    let view = ring.view();
    assert!(view.bytes() <= LIMIT && view.bytes() > LIMIT - FILE_SIZES.0, "{}", view.bytes());
    assert_eq!(view.end().offset, 2000 * 1024);
    assert_eq!(overwritten * 1024 + view.bytes(), 2000 * 1024, "each line is there or counted");
    assert_eq!(view.start().offset, overwritten * 1024);
    assert_eq!(files(directory.path()) as u64, view.bytes().div_ceil(FILE_SIZES.0));
}

#[test]
fn ring_continues_after_a_restart_with_the_same_positions() {
    let directory = tempfile::tempdir().unwrap();
    let mut ring = Ring::open(directory.path(), LIMIT).unwrap();
    assert!(Ring::open(directory.path(), LIMIT).unwrap_err().to_string().contains("another process"));
    for number in 0..100 {
        ring.append(&line(number)).unwrap();
    }
    let (id, end) = (ring.view().end().ring, ring.view().end());
    drop(ring);
    // A crash has left a part of a line.
    let last = path(directory.path(), id, 64 << 10);
    OpenOptions::new().append(true).open(&last).unwrap().write_all(b"part of a li").unwrap();
    let mut ring = Ring::open(directory.path(), LIMIT).unwrap();
    assert_eq!(ring.view().end(), end);
    ring.append(&line(100)).unwrap();
    assert_eq!(ring.view().end().offset, end.offset + 1024);
    assert_eq!(fs::read(last).unwrap().len(), 37 * 1024);
    drop(ring);
    // With a lower limit, the oldest files go at once.
    let ring = Ring::open(directory.path(), 1).unwrap();
    assert_eq!((files(directory.path()), ring.view().start().offset), (1, 64 << 10));
}

#[test]
fn only_the_user_of_agentk_may_read_the_files() {
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().join("audit/events");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let paths =
        || -> Vec<PathBuf> { fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect() };
    let mut ring = Ring::open(&directory, LIMIT).unwrap();
    for number in 0..200 {
        ring.append(&line(number)).unwrap();
    }
    drop(ring);
    assert_eq!((mode(&directory), paths().len()), (0o700, 5), "the lock and four files");
    assert!(paths().iter().all(|path| mode(path) == 0o600));
    // The operator has created the directory, and an earlier version of agentk the files.
    fs::set_permissions(&directory, Permissions::from_mode(0o750)).unwrap();
    for path in paths() {
        fs::set_permissions(path, Permissions::from_mode(0o644)).unwrap();
    }
    let _ring = Ring::open(&directory, LIMIT).unwrap();
    assert_eq!((mode(&directory), paths().len()), (0o750, 5));
    assert!(paths().iter().all(|path| mode(path) == 0o600));
}

#[test]
fn foreign_files_stay_and_another_ring_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    fs::write(at("notes.txt"), "mine").unwrap();
    fs::write(at("0000000g-1.jsonl"), "no id").unwrap();
    let old = path(directory.path(), 1, 0);
    fs::write(&old, line(0)).unwrap();
    File::open(&old).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    fs::write(path(directory.path(), 2, 1024), line(1)).unwrap();
    let ring = Ring::open(directory.path(), LIMIT).unwrap();
    assert_eq!(
        (ring.view().start(), ring.view().end()),
        (Position { ring: 2, offset: 1024 }, Position { ring: 2, offset: 2048 })
    );
    assert!(at("notes.txt").exists() && at("0000000g-1.jsonl").exists() && !old.exists());
}

#[test]
fn lines_that_cannot_be_written_leave_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut ring = Ring::open(directory.path(), LIMIT).unwrap();
    ring.append(&line(0)).unwrap();
    let path = ring.view().path(0);
    ring.file = File::open(&path).unwrap();
    assert!(ring.append(&line(1)).is_err());
    assert_eq!((ring.view().end().offset, fs::read(path).unwrap().len()), (1024, 1024));
}

#[test]
fn full_disk_removes_the_oldest_lines_for_the_newest() {
    let directory = tempfile::tempdir().unwrap();
    let mut ring = Ring::open(directory.path(), LIMIT).unwrap();
    for number in 0..200 {
        ring.append(&line(number)).unwrap();
    }
    let (view, full_at) = (ring.view(), Some(ring.view().bytes()));
    // The file of this device is always full; the next one is a file of the ring.
    ring.file = OpenOptions::new().write(true).open("/dev/full").unwrap();
    assert_eq!(ring.append(&line(200)).unwrap(), Appended { overwritten: 64, full_at });
    assert_eq!((view.start().offset, view.end().offset), (64 << 10, 201 << 10));
    assert_eq!(ring.append(&line(201)).unwrap(), Appended::default());
}

#[test]
fn full_disk_with_one_file_keeps_the_newest_lines() {
    let directory = tempfile::tempdir().unwrap();
    let mut ring = Ring::open(directory.path(), LIMIT).unwrap();
    ring.append(&line(0)).unwrap();
    ring.file = OpenOptions::new().write(true).open("/dev/full").unwrap();
    assert_eq!(ring.append(&line(1)).unwrap(), Appended { overwritten: 1, full_at: Some(1024) });
    let view = ring.view();
    assert_eq!((view.start().offset, fs::read(view.path(1024)).unwrap()), (1024, line(1)));
    ring.file = OpenOptions::new().write(true).open("/dev/full").unwrap();
    ring.append(&line(2)).unwrap();
    drop(ring);
    assert_eq!(Ring::open(directory.path(), LIMIT).unwrap().view().start().offset, 2048);
}

#[test]
fn part_of_a_line_that_cannot_be_removed_stays_outside_of_the_ring() {
    let directory = tempfile::tempdir().unwrap();
    let mut ring = Ring::open(directory.path(), LIMIT).unwrap();
    ring.append(&line(0)).unwrap();
    let (view, first) = (ring.view(), ring.view().path(0));
    OpenOptions::new().append(true).open(&first).unwrap().write_all(b"part of a li").unwrap();
    ring.file = File::open(&first).unwrap();
    assert!(ring.append(&line(1)).is_err());
    ring.append(&line(2)).unwrap();
    assert_eq!(view.end().offset, 2048);
    assert_eq!(fs::read(view.path(1024)).unwrap(), line(2));
    drop((ring, view));
    let view = Ring::open(directory.path(), LIMIT).unwrap().view();
    assert_eq!((view.start().offset, view.end().offset, view.bytes()), (0, 2048, 2048));
    assert_eq!(view.segment(0).unwrap().end(), 1024);
}

#[test]
fn file_that_cannot_be_removed_loses_no_new_line() {
    let directory = tempfile::tempdir().unwrap();
    let mut ring = Ring::open(directory.path(), LIMIT).unwrap();
    ring.append(&line(0)).unwrap();
    let oldest = ring.view().path(0);
    fs::remove_file(&oldest).unwrap();
    fs::create_dir(&oldest).unwrap();
    let mut changes = ring.view().changes();
    for number in 1..2000 {
        changes.mark_unchanged();
        ring.append(&line(number)).unwrap();
        assert!(changes.has_changed().unwrap());
    }
    assert_eq!(ring.view().end().offset, 2000 * 1024);
}

#[test]
fn files_before_a_time_are_left_out() {
    let directory = tempfile::tempdir().unwrap();
    let mut ring = Ring::open(directory.path(), LIMIT).unwrap();
    for number in 0..200 {
        ring.append(&line(number)).unwrap();
    }
    let view = ring.view();
    let (now, hour) = (SystemTime::now(), Duration::from_secs(3600));
    assert_eq!(view.since(now), view.start());
    let first = File::options().write(true).open(view.path(0)).unwrap();
    first.set_modified(now - 2 * hour).unwrap();
    assert_eq!(view.since(now - hour).offset, 64 << 10);
    assert_eq!(view.since(now - 3 * hour).offset, 0);
    assert_eq!(view.since(now + hour), view.end());
}

#[test]
fn position_has_one_form() {
    let position = Position { ring: 255, offset: 4096 };
    assert_eq!(position.to_string(), "000000ff.4096");
    assert_eq!("000000ff.4096".parse(), Ok(position));
    for invalid in [
        "",
        ".",
        "ff.1",
        "000000ff.",
        "000000ff.+1",
        "+00000ff.1",
        "000000ff.-1",
        "000000ff.99999999999999999999",
    ] {
        assert_eq!(invalid.parse::<Position>(), Err(InvalidPosition), "{invalid:?}");
    }
}
