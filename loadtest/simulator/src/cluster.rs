//! The state that all parts of the simulator share: the store, the stop token and the number of open streams.

use std::sync::Arc;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::store::Store;

/// The simulated cluster.
#[derive(Debug, Default)]
pub(crate) struct Cluster {
    pub store: Store,
    pub stop: CancellationToken,
    pub tasks: TaskTracker,
    streams: watch::Sender<usize>,
}

impl Cluster {
    /// Counts a stream as open until the returned guard is dropped.
    pub(crate) fn open_stream(self: &Arc<Self>) -> OpenStream {
        self.streams.send_modify(|open| *open += 1);
        OpenStream(Arc::clone(self))
    }

    pub(crate) fn open_streams(&self) -> watch::Receiver<usize> {
        self.streams.subscribe()
    }
}

/// The guard of an open watch, followed log, exec session or forwarded port.
#[derive(Debug)]
pub(crate) struct OpenStream(Arc<Cluster>);

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.streams.send_modify(|open| *open -= 1);
    }
}
