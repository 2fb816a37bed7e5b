//! What leaves.

use bytes::{Bytes, BytesMut};

use super::{
    super::{
        error::Error,
        frame::{self, HEAD, Head, flag, kind},
        message,
        outbox::{BATCH, Batch},
        stream::Pending,
    },
    Streams,
};

/// As much as one stream writes before it is the next one's turn, if there is a next one.
const TURN: usize = 64 << 10;

impl Streams {
    /// Takes out what is to be written next: all small frames, and then of each stream in line its turn.
    pub(crate) fn write(&mut self, batch: &mut Batch) {
        self.work = false;
        for _ in 0..self.outbox.ending() {
            self.wakers.extend(self.queue.next());
        }
        batch.push(self.outbox.take());
        while !batch.is_full()
            && let Some(id) = self.outbox.line.pop_front()
        {
            self.write_turn(id, batch);
        }
    }

    fn write_turn(&mut self, id: u32, batch: &mut Batch) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let outflow = &mut stream.outflow;
        outflow.in_line = false;
        match outflow.pending.pop_front() {
            None => {}
            Some(Pending::Data { mut bytes, end }) => {
                let turn = if self.outbox.line.is_empty() { BATCH } else { TURN };
                let taken = bytes.split_to(bytes.len().min(turn).min(self.peer.max_frame));
                let last = end && bytes.is_empty();
                if !bytes.is_empty() {
                    outflow.pending.push_front(Pending::Data { bytes, end });
                }
                outflow.queued -= taken.len();
                let flags = if last { flag::END_STREAM } else { 0 };
                let head = Head { length: taken.len(), kind: kind::DATA, flags, stream: id };
                batch.push(Bytes::copy_from_slice(&head.encode()));
                batch.push(taken);
                if outflow.queued <= self.settings.send_buffer / 2 {
                    self.wakers.extend(outflow.writer.take());
                }
            }
            Some(Pending::Trailers(trailers)) => {
                let mut out = BytesMut::zeroed(HEAD);
                message::pack_trailers(&mut self.encoder, &mut out, &trailers);
                frame::close_head(&mut out, 0, id, true, self.peer.max_frame);
                batch.push(out.freeze());
            }
            Some(Pending::Reset(reason)) => {
                stream.failed = Some(Error::Given);
                self.wakers.extend(stream.inflow.reader.take());
                let mut frame = BytesMut::new();
                frame::put_reset(&mut frame, id, reason);
                batch.push(frame.freeze());
            }
        }
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.outflow.pending.is_empty() {
            return self.settle(id);
        }
        stream.outflow.in_line = true;
        self.outbox.line.push_back(id);
    }
}
