//! A thread that writes lines to a sink, so that a slow or failing sink never delays a program.

use std::{
    io::Write,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc::{self, Receiver, Sender, SyncSender},
    },
    thread,
    time::Duration,
};

use prometheus_client::metrics::counter::Counter;

/// Queues lines for the thread that writes them. Cheap to clone.
///
/// It never blocks and never fails. It counts the lines that are lost because the queue is full or the write fails.
#[derive(Clone, Debug)]
pub struct LineWriter {
    entries: Sender<Entry>,
    /// Bytes of lines in the queue.
    queued: Arc<AtomicUsize>,
    max_queued: usize,
    lost: Counter,
}

enum Entry {
    Line(Vec<u8>),
    /// Reports that every line before it was written.
    Flush(SyncSender<()>),
}

impl LineWriter {
    /// Starts a thread with this `name` for a queue of `max_queued` bytes. `lost` counts the lost lines. The thread calls
    /// `report` with the number of lines that were lost since the last call, once a line was written again.
    ///
    /// # Panics
    ///
    /// If the system cannot start a thread.
    pub fn start(
        name: &str,
        max_queued: usize,
        sink: impl Write + Send + 'static,
        lost: Counter,
        report: impl Fn(u64) + Send + 'static,
    ) -> Self {
        let (entries, queue) = mpsc::channel();
        let writer = Self { entries, queued: Arc::default(), max_queued, lost };
        let (queued, lost) = (Arc::clone(&writer.queued), writer.lost.clone());
        let writing = move || write_lines(sink, &queue, &queued, &lost, report);
        thread::Builder::new().name(name.to_owned()).spawn(writing).expect("the system can start a thread");
        writer
    }

    /// Queues a whole line. Returns false if it is lost because the queue is full.
    pub fn send(&self, line: Vec<u8>) -> bool {
        let length = line.len();
        let queued = self.queued.fetch_add(length, Relaxed);
        let accepted = queued + length <= self.max_queued && self.entries.send(Entry::Line(line)).is_ok();
        if !accepted {
            self.queued.fetch_sub(length, Relaxed);
            self.lost.inc();
        }
        accepted
    }

    /// Waits until the lines that are queued now were written, or until the timeout.
    pub fn flush(&self, timeout: Duration) {
        let (written, flushed) = mpsc::sync_channel(1);
        if self.entries.send(Entry::Flush(written)).is_ok() {
            let _ = flushed.recv_timeout(timeout);
        }
    }
}

fn write_lines(
    mut sink: impl Write,
    queue: &Receiver<Entry>,
    queued: &AtomicUsize,
    lost: &Counter,
    report: impl Fn(u64),
) {
    let mut reported = 0;
    for entry in queue {
        let line = match entry {
            Entry::Line(line) => line,
            Entry::Flush(written) => {
                let _ = written.try_send(());
                continue;
            }
        };
        let result = sink.write_all(&line).and_then(|()| sink.flush());
        queued.fetch_sub(line.len(), Relaxed);
        if result.is_err() {
            lost.inc();
            continue;
        }
        let total = lost.get();
        if total > reported {
            report(total - reported);
            reported = total;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use parking_lot::{Mutex, MutexGuard};

    use super::*;

    const MAX_QUEUED: usize = 1 << 20;
    const LONG: Duration = Duration::from_secs(30);

    /// A sink whose content tests can read. Its lock stops the thread.
    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<SinkState>>);

    #[derive(Default)]
    struct SinkState {
        written: Vec<u8>,
        fails: bool,
    }

    impl Sink {
        fn state(&self) -> MutexGuard<'_, SinkState> {
            self.0.lock()
        }
    }

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut state = self.state();
            if state.fails {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            state.written.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn writer() -> (LineWriter, Sink) {
        let sink = Sink::default();
        (LineWriter::start("test", MAX_QUEUED, sink.clone(), Counter::default(), |_| {}), sink)
    }

    #[test]
    fn lines_are_written_in_order() {
        let (writer, sink) = writer();
        assert!(writer.send(b"one\n".to_vec()));
        assert!(writer.send(b"two\n".to_vec()));
        writer.flush(LONG);
        assert_eq!((&*sink.state().written, writer.lost.get()), (&b"one\ntwo\n"[..], 0));
        assert_eq!(writer.queued.load(Relaxed), 0);
    }

    #[test]
    fn failed_lines_are_counted_and_later_ones_are_written() {
        let (writer, sink) = writer();
        sink.state().fails = true;
        for _ in 0..3 {
            assert!(writer.send(b"lost\n".to_vec()));
        }
        writer.flush(LONG);
        sink.state().fails = false;
        assert!(writer.send(b"written\n".to_vec()));
        writer.flush(LONG);
        assert_eq!((&*sink.state().written, writer.lost.get()), (&b"written\n"[..], 3));
    }

    #[test]
    fn blocked_sink_delays_no_line_and_bounds_the_queue() {
        let (writer, sink) = writer();
        let blocked = sink.state();
        let line = vec![b'x'; MAX_QUEUED / 16];
        for _ in 0..20 {
            writer.send(line.clone());
        }
        // The timeout is zero, because the thread is blocked.
        writer.flush(Duration::ZERO);
        assert_eq!(writer.lost.get(), 4);
        drop(blocked);
        writer.flush(LONG);
        assert_eq!(sink.state().written.len(), MAX_QUEUED);
    }
}
