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
    io::{self, ErrorKind, Read as _, Seek as _, SeekFrom, Write as _},
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
pub struct RingView(Arc<RingState>);

#[derive(Debug)]
struct RingState {
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
    /// The lines of the files that were removed.
    pub overwritten: u64,
    /// The bytes of the ring when the disk was full, if it was: fewer than the limit.
    pub full_at: Option<u64>,
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
        let shared = RingState {
            directory: directory.to_owned(),
            id,
            segments: Mutex::new(segments),
            end: watch::Sender::new(last.end()),
        };
        let file_size = (limit / FILES).clamp(FILE_SIZES.0, FILE_SIZES.1);
        let view = RingView(Arc::new(shared));
        let ring = Self { view, file, limit, file_size, is_broken: false, _lock: lock };
        ring.shrink();
        Ok(ring)
    }

    /// Returns a view for readers.
    pub fn view(&self) -> RingView {
        self.view.clone()
    }

    /// Appends complete lines. If the disk is full, the oldest files make room for them.
    ///
    /// # Errors
    ///
    /// The lines cannot be written. None of them is in the ring.
    pub fn append(&mut self, lines: &[u8]) -> io::Result<Appended> {
        debug_assert!(lines.ends_with(b"\n") || lines.is_empty(), "only complete lines are appended");
        let mut appended = Appended::default();
        loop {
            match self.write(lines) {
                Ok(()) => {
                    appended.overwritten += self.shrink();
                    return Ok(appended);
                }
                Err(error) if matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded) => {
                    appended.full_at.get_or_insert_with(|| self.view.bytes());
                    appended.overwritten += self.make_room()?.ok_or(error)?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn write(&mut self, lines: &[u8]) -> io::Result<()> {
        let shared = Arc::clone(&self.view.0);
        let Some(mut last) = shared.segments.lock().back().copied() else { return Ok(()) };
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
            last = self.begin_file(last.end())?;
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
        Ok(())
    }

    /// Begins a file, whose first byte has this offset.
    fn begin_file(&mut self, start: u64) -> io::Result<Segment> {
        let (shared, segment) = (&self.view.0, Segment { start, length: 0 });
        self.file = open(&path(&shared.directory, shared.id, start))?;
        self.is_broken = false;
        shared.segments.lock().push_back(segment);
        Ok(segment)
    }

    /// Removes the oldest file of a full disk. Returns the number of its lines, or `None` if no line is left.
    fn make_room(&mut self) -> io::Result<Option<u64>> {
        // Files for a larger disk would leave it nearly empty at each removal.
        self.file_size = (self.view.bytes() / FILES).clamp(FILE_SIZES.0, self.file_size);
        let only = {
            let segments = self.view.0.segments.lock();
            segments.back().copied().filter(|_| segments.len() == 1)
        };
        match only {
            Some(Segment { length: 0, .. }) => return Ok(None),
            Some(only) => {
                self.begin_file(only.end())?;
            }
            None => {}
        }
        let oldest = self.view.0.segments.lock().pop_front();
        Ok(oldest.map(|oldest| self.remove(oldest)))
    }

    /// Removes what follows the complete lines of the last file.
    fn truncate(&mut self, length: u64) -> io::Result<()> {
        self.file.set_len(length)?;
        self.file.seek(SeekFrom::Start(length)).map(drop)
    }

    /// Removes the oldest files until the others fit into the limit. Returns the number of their lines.
    fn shrink(&self) -> u64 {
        let mut lines = 0;
        loop {
            let oldest = {
                let mut segments = self.view.0.segments.lock();
                let bytes: u64 = segments.iter().map(|segment| segment.length).sum();
                if bytes <= self.limit || segments.len() < 2 {
                    return lines;
                }
                segments.pop_front()
            };
            lines += oldest.map_or(0, |oldest| self.remove(oldest));
        }
    }

    /// Removes a file. Returns the number of its lines.
    fn remove(&self, segment: Segment) -> u64 {
        let path = self.view.path(segment.start);
        let lines = count_lines(&path).unwrap_or_default();
        if let Err(error) = fs::remove_file(&path)
            && error.kind() != ErrorKind::NotFound
        {
            tracing::warn!(path = %path.display(), %error, "a file of the oldest audit events was not removed");
        }
        lines
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
mod tests;
