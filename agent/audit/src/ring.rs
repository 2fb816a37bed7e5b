//! The ring of files: lines are appended to the newest file, and the oldest file is removed when all of them are too large.
//!
//! ```text
//!   <id>-00000000000000000000.jsonl   <id>-00000000000000524160.jsonl   …   the name has the offset of the first byte
//! ```
//!
//! A position is the id of the ring and an offset since its beginning. It stays valid while agentk restarts, and a reader whose position
//! was removed sees how much it has lost.

use std::{
    collections::VecDeque,
    fmt,
    fs::{self, DirBuilder, File, OpenOptions, Permissions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use tokio::sync::watch;

/// The number of files of a full ring.
const FILES: u64 = 16;
/// The smallest and the largest file.
const FILE_SIZES: (u64, u64) = (64 << 10, 16 << 20);
/// The modes of a new directory and of all files: only the user of agentk may read who has done what in the cluster.
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// The ending of the names of files.
const ENDING: &str = ".jsonl";
/// The longest end of a file that is searched for the end of its last line. No line is as long.
const TAIL: u64 = 64 << 10;
/// The difference that the clocks of the API server and of this machine may have.
const CLOCK_SKEW: Duration = Duration::from_secs(300);

/// Appends lines. Only one process at a time has a ring in a directory.
#[derive(Debug)]
pub struct Ring {
    view: RingView,
    file: File,
    limit: u64,
    file_size: u64,
    /// A part of a line may be at the end of the file.
    is_broken: bool,
    /// Keeps other processes away from the directory.
    _lock: File,
}

/// Reads lines. Clones are cheap.
#[derive(Clone, Debug)]
pub struct RingView(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    directory: PathBuf,
    id: u32,
    segments: Mutex<VecDeque<Segment>>,
    end: watch::Sender<u64>,
}

/// A file of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// The offset of its first byte.
    pub(crate) start: u64,
    /// Its bytes. They end with a complete line.
    pub(crate) length: u64,
}

/// A position in a ring: after a line, or at the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub(crate) ring: u32,
    pub(crate) offset: u64,
}

/// The error of a text that is no position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a position is one of an earlier response, such as 0a1b2c3d.4096")]
pub struct InvalidPosition;

/// The result of [`Ring::append`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Appended {
    /// The lines of the file that was removed.
    pub overwritten: u64,
}

impl Ring {
    /// Opens the ring of a directory, or begins one. `limit` is the most bytes of all files.
    ///
    /// # Errors
    ///
    /// The directory cannot be used, or another process uses it.
    pub fn open(directory: &Path, limit: u64) -> io::Result<Self> {
        // A directory that exists keeps the mode that the operator has chosen.
        DirBuilder::new().recursive(true).mode(DIRECTORY_MODE).create(directory)?;
        let lock_path = directory.join("lock");
        let lock = open_private(&lock_path)?;
        lock.try_lock().map_err(|_| io::Error::other("another process uses the directory"))?;
        let (id, mut segments) = find(directory)?;
        let id = id.unwrap_or_else(rand::random);
        // Earlier versions created files that all users of the machine can read.
        restrict(&lock_path);
        for segment in &segments {
            restrict(&path(directory, id, segment.start));
        }
        if let Some(last) = segments.back_mut() {
            last.length = complete(&path(directory, id, last.start), last.length)?;
        }
        // A part of a line that could not be removed may follow the lines of a file. One that ends too early is a gap for readers.
        for index in 1..segments.len() {
            let most = segments[index].start - segments[index - 1].start;
            segments[index - 1].length = segments[index - 1].length.min(most);
        }
        let last = *match segments.back() {
            Some(last) => last,
            None => segments.push_back_mut(Segment { start: 0, length: 0 }),
        };
        let file = open(&path(directory, id, last.start))?;
        let shared = Shared {
            directory: directory.to_owned(),
            id,
            segments: Mutex::new(segments),
            end: watch::Sender::new(last.end()),
        };
        let file_size = (limit / FILES).clamp(FILE_SIZES.0, FILE_SIZES.1);
        let view = RingView(Arc::new(shared));
        let mut ring = Self { view, file, limit, file_size, is_broken: false, _lock: lock };
        ring.shrink();
        Ok(ring)
    }

    /// Returns a view for readers.
    pub fn view(&self) -> RingView {
        self.view.clone()
    }

    /// Appends complete lines.
    ///
    /// # Errors
    ///
    /// The lines cannot be written. None of them is in the ring.
    pub fn append(&mut self, lines: &[u8]) -> io::Result<Appended> {
        debug_assert!(lines.ends_with(b"\n") || lines.is_empty(), "only complete lines are appended");
        let shared = Arc::clone(&self.view.0);
        let Some(mut last) = shared.segments.lock().back().copied() else { return Ok(Appended::default()) };
        let added = lines.len() as u64;
        if self.is_broken {
            match self.truncate(last.length) {
                Ok(()) => self.is_broken = false,
                // The next file begins after the last complete line.
                Err(error) if last.length == 0 => return Err(error),
                Err(_) => {}
            }
        }
        if last.length > 0 && (self.is_broken || last.length + added > self.file_size) {
            last = Segment { start: last.end(), length: 0 };
            self.file = open(&path(&shared.directory, shared.id, last.start))?;
            self.is_broken = false;
            shared.segments.lock().push_back(last);
        }
        if let Err(error) = self.file.write_all(lines) {
            // A part of them may be in the file. If it stays there, the next line would follow it.
            self.is_broken = self.truncate(last.length).is_err();
            return Err(error);
        }
        last.length += added;
        if let Some(known) = shared.segments.lock().back_mut() {
            *known = last;
        }
        shared.end.send_replace(last.end());
        Ok(Appended { overwritten: self.shrink() })
    }

    /// Removes what follows the complete lines of the last file.
    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.file.set_len(length)?;
        self.file.seek(SeekFrom::Start(length)).map(drop)
    }

    /// Removes the oldest files until the others fit into the limit. Returns the number of their lines.
    fn shrink(&mut self) -> u64 {
        let shared = &self.view.0;
        let mut lines = 0;
        loop {
            let oldest = {
                let mut segments = shared.segments.lock();
                let bytes: u64 = segments.iter().map(|segment| segment.length).sum();
                if bytes <= self.limit || segments.len() < 2 {
                    return lines;
                }
                segments.pop_front()
            };
            if let Some(oldest) = oldest {
                let path = path(&shared.directory, shared.id, oldest.start);
                lines += count_lines(&path).unwrap_or_default();
                if let Err(error) = fs::remove_file(&path)
                    && error.kind() != io::ErrorKind::NotFound
                {
                    tracing::warn!(path = %path.display(), %error, "a file of the oldest audit events was not removed");
                }
            }
        }
    }
}

impl RingView {
    /// Returns the position after the last line.
    pub fn end(&self) -> Position {
        Position { ring: self.0.id, offset: *self.0.end.borrow() }
    }

    /// Returns the position of the first line.
    pub fn start(&self) -> Position {
        let offset = self.0.segments.lock().front().map_or(0, |first| first.start);
        Position { ring: self.0.id, offset }
    }

    /// Returns a position before all events since this time. It looks at the times of files, which blocks.
    pub fn since(&self, time: SystemTime) -> Position {
        let segments: Vec<Segment> = self.0.segments.lock().iter().copied().collect();
        let has_older_only = |segment: &&Segment| {
            let written = self.path(segment.start).metadata().and_then(|file| file.modified());
            written.is_ok_and(|written| written + CLOCK_SKEW < time)
        };
        let newest = segments.iter().rev().find(has_older_only);
        newest.map_or_else(|| self.start(), |segment| Position { ring: self.0.id, offset: segment.end() })
    }

    /// Returns the bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.0.segments.lock().iter().map(|segment| segment.length).sum()
    }

    /// Returns a receiver of the end, which changes with each line.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.end.subscribe()
    }

    /// Returns the file with this offset, or the first one if the offset is before it. Returns `None` at the end.
    pub(crate) fn segment(&self, offset: u64) -> Option<Segment> {
        let segments = self.0.segments.lock();
        segments.iter().find(|segment| offset < segment.end()).copied()
    }

    pub(crate) fn path(&self, start: u64) -> PathBuf {
        path(&self.0.directory, self.0.id, start)
    }
}

impl Segment {
    pub(crate) fn end(&self) -> u64 {
        self.start + self.length
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}.{}", self.ring, self.offset)
    }
}

impl FromStr for Position {
    type Err = InvalidPosition;

    fn from_str(text: &str) -> Result<Self, InvalidPosition> {
        let (ring, offset) =
            text.split_once('.').filter(|(ring, _)| ring.len() == 8).ok_or(InvalidPosition)?;
        let digits = |text: &str, radix| text.chars().all(|c| c.is_digit(radix));
        if !digits(ring, 16) || !digits(offset, 10) {
            return Err(InvalidPosition);
        }
        let ring = u32::from_str_radix(ring, 16).map_err(|_| InvalidPosition)?;
        Ok(Self { ring, offset: offset.parse().map_err(|_| InvalidPosition)? })
    }
}

fn path(directory: &Path, id: u32, start: u64) -> PathBuf {
    directory.join(format!("{id:08x}-{start:020}{ENDING}"))
}

fn open(path: &Path) -> io::Result<File> {
    let mut file = open_private(path)?;
    file.seek(SeekFrom::End(0))?;
    Ok(file)
}

/// Opens a file for writing. The mode is that of a new file.
fn open_private(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).truncate(false).write(true).mode(FILE_MODE).open(path)
}

/// Sets the mode of a file that exists. Only its owner may do so, and the ring can be used without.
fn restrict(path: &Path) {
    if let Err(error) = fs::set_permissions(path, Permissions::from_mode(FILE_MODE)) {
        tracing::warn!(path = %path.display(), %error, "the mode of a file of audit events was not changed to 0600");
    }
}

/// Finds the files of a ring, in order. If there are several rings, the newest files win, and the others are removed.
fn find(directory: &Path) -> io::Result<(Option<u32>, VecDeque<Segment>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let parts =
            name.to_str().and_then(|name| name.strip_suffix(ENDING)).and_then(|name| name.split_once('-'));
        let parsed = parts.and_then(|(id, start)| {
            Some((u32::from_str_radix(id, 16).ok().filter(|_| id.len() == 8)?, start.parse::<u64>().ok()?))
        });
        if let Some((id, start)) = parsed {
            let file = entry.metadata()?;
            found.push((file.modified()?, id, Segment { start, length: file.len() }));
        }
    }
    let Some(&(_, newest, _)) = found.iter().max_by_key(|(modified, ..)| *modified) else {
        return Ok((None, VecDeque::new()));
    };
    for (_, id, segment) in found.iter().filter(|(_, id, _)| *id != newest) {
        fs::remove_file(path(directory, *id, segment.start))?;
    }
    let mut segments: Vec<Segment> =
        found.into_iter().filter(|(_, id, _)| *id == newest).map(|(.., segment)| segment).collect();
    segments.sort_by_key(|segment| segment.start);
    Ok((Some(newest), segments.into()))
}

/// Removes the part of a line at the end of a file, which a crash has left there. Returns the length.
fn complete(path: &Path, length: u64) -> io::Result<u64> {
    let mut file = OpenOptions::new().read(true).write(true).open(path)?;
    let from = length.saturating_sub(TAIL);
    file.seek(SeekFrom::Start(from))?;
    let mut tail = Vec::new();
    file.take(TAIL).read_to_end(&mut tail)?;
    let end = tail.iter().rposition(|byte| *byte == b'\n').map_or(0, |index| index as u64 + 1);
    if from + end < length {
        OpenOptions::new().write(true).open(path)?.set_len(from + end)?;
    }
    Ok(from + end)
}

/// Returns the number of lines of a file.
fn count_lines(path: &Path) -> io::Result<u64> {
    let mut file = File::open(path)?;
    let mut buffer = vec![0; TAIL as usize];
    let mut lines = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(lines),
            read => lines += buffer[..read].iter().filter(|byte| **byte == b'\n').count() as u64,
        }
    }
}

#[cfg(test)]
mod tests {
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
        let paths = || -> Vec<PathBuf> {
            fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path()).collect()
        };
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
}
