//! What a connection's task shares with those who hold streams, on whichever core they are.

use parking_lot::Mutex;

use super::streams::Streams;

/// The streams behind their lock. It is held for no longer than one of their methods takes, and nobody is woken under it.
#[derive(Debug)]
pub(crate) struct Shared(Mutex<Streams>);

impl Shared {
    pub(super) fn new(streams: Streams) -> Self {
        Self(Mutex::new(streams))
    }

    /// For those who hold streams: wakes the connection's task if there is something to do for it.
    pub(super) fn with<R>(&self, change: impl FnOnce(&mut Streams) -> R) -> R {
        let mut streams = self.0.lock();
        let result = change(&mut streams);
        let (wakers, driver) = streams.woken(false);
        drop(streams);
        wakers.into_iter().chain(driver).for_each(|waker| waker.wake());
        result
    }

    /// For the connection's task.
    pub(super) fn drive<R>(&self, change: impl FnOnce(&mut Streams) -> R) -> R {
        let mut streams = self.0.lock();
        streams.awake();
        let result = change(&mut streams);
        let (wakers, _) = streams.woken(true);
        drop(streams);
        wakers.into_iter().for_each(|waker| waker.wake());
        result
    }

    /// Ends the connection at once: everything in flight is aborted.
    pub(crate) fn cut(&self) {
        self.with(|streams| streams.cut = true);
    }

    /// Takes no new requests, and ends the connection when those in flight have ended.
    pub(crate) fn leave(&self) {
        self.with(Streams::leave);
    }
}
