//! The connections of one listener.

use std::{net::IpAddr, sync::Arc};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{Stranger, Strangers};

/// Limits the connections of one listener. A connection beyond the limit replaces one of a stranger, or else waits.
#[derive(Debug)]
pub struct ConnectionLimit {
    permits: Arc<Semaphore>,
    strangers: Arc<Strangers>,
}

/// The permit of a connection, which counts until this is dropped.
pub type ConnectionPermit = OwnedSemaphorePermit;

impl ConnectionLimit {
    /// Allows so many connections.
    pub fn new(max_connections: usize) -> Self {
        Self { permits: Arc::new(Semaphore::new(max_connections)), strangers: Arc::default() }
    }

    /// Waits until there is room for a connection of this address. If there is none at once, `on_full` is called: its argument is
    /// whether a connection of a stranger ends for this one.
    ///
    /// The task that serves a connection ends once [`Stranger::replaced`] is cancelled, and drops the permit. Cancel safe.
    pub async fn acquire(&self, address: IpAddr, on_full: impl FnOnce(bool)) -> (ConnectionPermit, Stranger) {
        let permit = match Arc::clone(&self.permits).try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                on_full(self.strangers.replace_one());
                Arc::clone(&self.permits).acquire_owned().await.expect("it is never closed")
            }
        };
        (permit, self.strangers.insert(address))
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn new_connection_replaces_a_stranger_and_else_waits() {
        let limit = ConnectionLimit::new(2);
        let [known, flood, new] = [[10, 0, 0, 1], [10, 0, 0, 2], [10, 0, 0, 3]].map(IpAddr::from);
        let never = |_| panic!("there is room");
        let (first, known) = limit.acquire(known, never).await;
        known.admit();
        let (permit, silent) = limit.acquire(flood, never).await;
        let replaced = silent.replaced();
        let serving = tokio::spawn(async move {
            replaced.run_until_cancelled(pending::<()>()).await;
            drop((permit, silent));
        });
        let (_second, other) = limit.acquire(new, |replaces| assert!(replaces)).await;
        serving.await.unwrap();
        other.admit();
        let waiting = limit.acquire(flood, |replaces| assert!(!replaces));
        tokio::pin!(waiting);
        tokio::select! {
            biased;
            _ = &mut waiting => panic!("all clients have a credential"),
            () = tokio::task::yield_now() => {}
        }
        drop(first);
        drop(waiting.await);
        assert!(!known.replaced().is_cancelled() && !other.replaced().is_cancelled());
    }
}
