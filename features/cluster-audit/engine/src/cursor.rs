//! Reads the lines of a ring from a position.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _, SeekFrom},
    ops::ControlFlow,
    time::{Duration, SystemTime},
};

use proto::audit::ClusterEvent;

use crate::{EventFilter, Position, RingView, filter::EventFields, ring::Segment};

/// The bytes that are read at a time. No line is as long.
const CHUNK: usize = 256 << 10;

/// Reads lines. It needs the memory of one chunk.
#[derive(Debug)]
pub struct Cursor {
    view: RingView,
    offset: u64,
    /// The file that was read last, and the offset of its first byte.
    file: Option<(u64, File)>,
    chunk: Vec<u8>,
    /// The position of the reader is not one of this ring.
    is_foreign: bool,
    /// The first time for which the reader asks, if events of this time may have been removed.
    since: Option<SystemTime>,
}

/// The result of [`Cursor::read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There may be further lines.
    More,
    /// There are no further lines now.
    End,
    /// Lines before the position were removed before they were read. Their bytes, if they are known.
    Gap(Option<u64>),
}

impl Cursor {
    /// Reads from a position on. One that is not of this ring is the beginning, after a gap.
    pub fn new(view: RingView, position: Position) -> Self {
        let is_foreign = position.ring != view.end().ring || position.offset > view.end().offset;
        let offset = if is_foreign { view.start().offset } else { position.offset };
        Self { view, offset, file: None, chunk: Vec::new(), is_foreign, since: None }
    }

    /// Reads all events since a time, and earlier ones. A gap comes first if events of this time may have been removed. This looks at the
    /// times of files, which blocks.
    pub fn since(view: RingView, time: SystemTime) -> Self {
        let begin = view.since(time);
        // A ring whose first byte still exists has lost nothing, and a file that is skipped has older events only.
        let may_have_lost = begin.offset > 0 && begin == view.start();
        Self { since: may_have_lost.then_some(time), ..Self::new(view, begin) }
    }

    /// Returns the position after the last line that was read.
    pub fn position(&self) -> Position {
        Position { ring: self.view.end().ring, offset: self.offset }
    }

    /// Reads the next chunk, and passes on each line that the filter selects, without its end, together with the position after it and
    /// the name of its user. With `Break` it stops after this line. This blocks.
    ///
    /// # Errors
    ///
    /// A file cannot be read.
    pub fn read(
        &mut self,
        filter: &EventFilter,
        scope: Option<&[String]>,
        mut on_line: impl FnMut(Position, &str, &[u8]) -> ControlFlow<()>,
    ) -> io::Result<Progress> {
        if std::mem::take(&mut self.is_foreign) {
            return Ok(Progress::Gap(None));
        }
        let Some(segment) = self.view.segment(self.offset) else { return Ok(Progress::End) };
        if self.offset < segment.start {
            let lost = segment.start - self.offset;
            self.offset = segment.start;
            self.since = None;
            return Ok(Progress::Gap(Some(lost)));
        }
        match self.fill(segment) {
            Ok(()) => {}
            // It was removed in this moment.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let lost = segment.end() - self.offset;
                self.offset = segment.end();
                self.since = None;
                return Ok(Progress::Gap(Some(lost)));
            }
            Err(error) => return Err(error),
        }
        if let Some(since) = self.since.take()
            && oldest(&self.chunk).is_none_or(|oldest| oldest > since)
        {
            return Ok(Progress::Gap(None));
        }
        let ring = self.view.end().ring;
        let Some(end) = self.chunk.iter().rposition(|byte| *byte == b'\n') else {
            // Only a damaged file has no line here, or ends earlier.
            let rest = segment.end() - self.offset;
            let lost = if self.chunk.is_empty() { rest } else { self.chunk.len() as u64 };
            self.offset += lost;
            return Ok(Progress::Gap(Some(lost)));
        };
        for line in self.chunk[..end].split(|byte| *byte == b'\n') {
            self.offset += line.len() as u64 + 1;
            let Some(event) = EventFields::new(line).filter(|event| filter.selects(event, scope)) else {
                continue;
            };
            if on_line(Position { ring, offset: self.offset }, event.user(), line).is_break() {
                break;
            }
        }
        Ok(Progress::More)
    }

    /// Reads the chunk at the offset.
    fn fill(&mut self, segment: Segment) -> io::Result<()> {
        let mut file = match self.file.take() {
            Some((start, file)) if start == segment.start => file,
            _ => File::open(self.view.path(segment.start))?,
        };
        file.seek(SeekFrom::Start(self.offset - segment.start))?;
        let length = (segment.end() - self.offset).min(CHUNK as u64);
        self.chunk.clear();
        (&mut file).take(length).read_to_end(&mut self.chunk)?;
        self.file = Some((segment.start, file));
        Ok(())
    }
}

/// Returns the time at which the first event of a chunk was sent. The removed events were sent earlier. The request of the event may be
/// older than the removed ones: that of a watch takes hours.
fn oldest(chunk: &[u8]) -> Option<SystemTime> {
    let line = chunk.split(|byte| *byte == b'\n').next()?;
    let event: ClusterEvent = serde_json::from_slice(line).ok()?;
    let duration = Duration::try_from_secs_f64(event.duration_ms.unwrap_or_default() / 1000.0);
    humantime::parse_rfc3339(&event.time).ok()?.checked_add(duration.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use proto::audit::ClusterUser;

    use super::*;
    use crate::Ring;

    fn line(number: usize) -> String {
        format!(
            "{{\"time\":\"{number:06}\",\"audit_id\":\"{}\",\"verb\":\"get\",\"cluster_user\":{{\"name\":\"jane\"}}}}\n",
            "x".repeat(500)
        )
    }

    struct Fixture {
        directory: tempfile::TempDir,
        ring: Ring,
    }

    impl Fixture {
        fn new(lines: usize) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let ring = Ring::open(directory.path(), 1 << 20).unwrap();
            let mut fixture = Self { directory, ring };
            fixture.append(0..lines);
            fixture
        }

        fn append(&mut self, numbers: std::ops::Range<usize>) {
            for number in numbers {
                self.ring.append(line(number).as_bytes()).unwrap();
            }
        }
    }

    /// Reads up to the end. Returns the times of the lines, and the gaps.
    fn read(cursor: &mut Cursor, filter: &EventFilter) -> (Vec<usize>, Vec<Option<u64>>) {
        let (mut lines, mut gaps) = (Vec::new(), Vec::new());
        loop {
            let progress = cursor.read(filter, None, |_, user, line| {
                assert_eq!(user, "jane");
                lines.push(std::str::from_utf8(&line[9..15]).unwrap().parse().unwrap());
                ControlFlow::Continue(())
            });
            match progress.unwrap() {
                Progress::More => {}
                Progress::End => return (lines, gaps),
                Progress::Gap(lost) => gaps.push(lost),
            }
        }
    }

    #[test]
    fn all_lines_are_read_once_over_several_files_and_readings() {
        let mut fixture = Fixture::new(1000);
        let view = fixture.ring.view();
        let mut cursor = Cursor::new(view.clone(), view.start());
        let all = EventFilter::default();
        assert_eq!(read(&mut cursor, &all), ((0..1000).collect(), Vec::new()));
        assert_eq!(read(&mut cursor, &all), (Vec::new(), Vec::new()));
        fixture.append(1000..1010);
        assert_eq!(read(&mut cursor, &all), ((1000..1010).collect(), Vec::new()));
        let filter = EventFilter { since: Some("000998".to_owned()), ..EventFilter::default() };
        let mut again = Cursor::new(view.clone(), view.start());
        assert_eq!(read(&mut again, &filter).0, (998..1010).collect::<Vec<_>>());
        assert!(fixture.directory.path().exists());
    }

    #[test]
    fn reader_continues_after_the_line_at_which_it_stopped() {
        let fixture = Fixture::new(10);
        let view = fixture.ring.view();
        let mut cursor = Cursor::new(view.clone(), view.start());
        let (mut lines, mut last) = (0, None);
        let stopped = cursor.read(&EventFilter::default(), None, |position, _, _| {
            (lines, last) = (lines + 1, Some(position));
            if lines == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert_eq!((stopped.unwrap(), lines, Some(cursor.position())), (Progress::More, 3, last));
        let mut next = Cursor::new(view, last.unwrap().to_string().parse().unwrap());
        assert_eq!(read(&mut next, &EventFilter::default()).0, (3..10).collect::<Vec<_>>());
    }

    #[test]
    fn reader_sees_the_bytes_that_it_has_lost() {
        let mut fixture = Fixture::new(100);
        let view = fixture.ring.view();
        let (start, length) = (view.start(), line(0).len());
        let mut cursor = Cursor::new(view.clone(), start);
        fixture.append(100..5000);
        let (lines, gaps) = read(&mut cursor, &EventFilter::default());
        assert_eq!(gaps, [Some(view.start().offset)]);
        let lost = view.start().offset as usize / length;
        assert_eq!(lines, (lost..5000).collect::<Vec<_>>());
    }

    #[test]
    fn time_that_the_ring_may_have_lost_is_a_gap() {
        let directory = tempfile::tempdir().unwrap();
        let mut ring = Ring::open(directory.path(), 1 << 20).unwrap();
        let view = ring.view();
        let second = |number: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(number);
        // Each event is sent half a second after its request.
        let line = |number: u64| {
            let event = ClusterEvent {
                time: humantime::format_rfc3339_micros(second(number)).to_string(),
                duration_ms: Some(500.0),
                audit_id: "x".repeat(500),
                verb: "get".to_owned(),
                cluster_user: ClusterUser { name: "jane".to_owned(), ..ClusterUser::default() },
                ..ClusterEvent::default()
            };
            format!("{}\n", serde_json::to_string(&event).unwrap())
        };
        let read = |mut cursor: Cursor| {
            let (mut gaps, mut lines) = (Vec::new(), 0_usize);
            loop {
                let progress = cursor.read(&EventFilter::default(), None, |_, _, _| {
                    lines += 1;
                    ControlFlow::Continue(())
                });
                match progress.unwrap() {
                    Progress::More => {}
                    Progress::End => return (gaps, lines),
                    Progress::Gap(lost) => {
                        assert_eq!((lines, cursor.position()), (0, view.start()), "it comes first");
                        gaps.push(lost);
                    }
                }
            }
        };
        let since = |number: u64| read(Cursor::since(view.clone(), second(number)));
        for number in 0..100 {
            ring.append(line(number).as_bytes()).unwrap();
        }
        assert_eq!(since(0), (vec![], 100), "the ring is complete");
        for number in 100..5000 {
            ring.append(line(number).as_bytes()).unwrap();
        }
        let removed = view.start().offset / line(0).len() as u64;
        assert!(removed > 0);
        let kept = usize::try_from(5000 - removed).unwrap();
        assert_eq!(since(0), (vec![None], kept));
        assert_eq!(
            since(removed),
            (vec![None], kept),
            "the request of a removed event may have come meanwhile"
        );
        assert_eq!(since(removed + 1), (vec![], kept));
        let oldest = Cursor::new(view.clone(), view.start());
        assert_eq!(read(oldest), (vec![], kept), "without a time there is no gap");
    }

    #[test]
    fn position_of_another_ring_is_the_beginning_after_a_gap() {
        let fixture = Fixture::new(3);
        let view = fixture.ring.view();
        let end = view.end();
        for position in
            [Position { ring: end.ring ^ 1, offset: 0 }, Position { offset: end.offset + 1, ..end }]
        {
            let mut cursor = Cursor::new(view.clone(), position);
            assert_eq!(read(&mut cursor, &EventFilter::default()), (vec![0, 1, 2], vec![None]));
        }
    }

    #[test]
    fn damaged_part_of_a_file_is_a_gap() {
        let fixture = Fixture::new(0);
        let mut ring = Ring::open(&fixture.directory.path().join("large"), 64 << 20).unwrap();
        let damaged = [vec![0; CHUNK + 9], b"\n".to_vec()].concat();
        ring.append(line(0).as_bytes()).unwrap();
        ring.append(&damaged).unwrap();
        ring.append(line(1).as_bytes()).unwrap();
        let view = ring.view();
        let damage = Position { offset: line(0).len() as u64, ..view.start() };
        let mut cursor = Cursor::new(view.clone(), damage);
        assert_eq!(read(&mut cursor, &EventFilter::default()), (vec![1], vec![Some(CHUNK as u64)]));
        // The file ends too early.
        let length = damage.offset + damaged.len() as u64;
        File::options().write(true).open(view.path(0)).unwrap().set_len(length).unwrap();
        let mut cursor = Cursor::new(view.clone(), Position { offset: length, ..damage });
        assert_eq!(read(&mut cursor, &EventFilter::default()), (vec![], vec![Some(line(1).len() as u64)]));
    }

    #[test]
    fn position_within_a_line_skips_its_rest() {
        let fixture = Fixture::new(3);
        let view = fixture.ring.view();
        let mut cursor = Cursor::new(view.clone(), Position { offset: 7, ..view.start() });
        assert_eq!(read(&mut cursor, &EventFilter::default()), (vec![1, 2], Vec::new()));
    }
}
