//! The tunnels of one process of agentk to this replica, one of which serves it.
//!
//! The oldest one does that neither end drains. agentk opens a tunnel with the index of another one when it has lost or left that, which kas
//! may learn half a minute later: the other one counts as drained from then on. If all are drained, the oldest one serves, so that the last
//! events of an agentk that stops arrive.
//!
//! A holder of the agent's token may send the instance of another process of the same agent, and gets its configuration and its streams. It
//! could have them in any case, as a process of its own.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use tokio::sync::watch;

/// The tunnels of one process of agentk to this replica.
#[derive(Debug, Default)]
pub struct AgentProcess {
    tunnels: watch::Sender<Vec<ServingRank>>,
    /// The number of tunnels so far.
    count: AtomicU64,
}

/// The rank of a tunnel: the smallest one serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct ServingRank {
    is_drained: bool,
    number: u64,
    /// The index that agentk has given to the tunnel.
    index: u16,
}

/// A tunnel among those of its process, until it is dropped.
#[derive(Debug)]
pub(super) struct ProcessTunnel {
    process: Arc<AgentProcess>,
    number: u64,
}

impl AgentProcess {
    /// Adds a tunnel, which replaces those with the same index.
    pub(super) fn join(self: &Arc<Self>, index: u16) -> ProcessTunnel {
        let number = self.count.fetch_add(1, Relaxed);
        self.tunnels.send_modify(|tunnels| {
            for replaced in tunnels.iter_mut().filter(|tunnel| tunnel.index == index) {
                replaced.is_drained = true;
            }
            tunnels.push(ServingRank { is_drained: false, number, index });
        });
        ProcessTunnel { process: Arc::clone(self), number }
    }
}

impl ProcessTunnel {
    /// Lets other tunnels serve the process, if there are any.
    pub(super) fn drain(&self) {
        self.process.tunnels.send_modify(|tunnels| {
            for own in tunnels.iter_mut().filter(|tunnel| tunnel.number == self.number) {
                own.is_drained = true;
            }
        });
    }

    /// Waits until this tunnel serves the process.
    pub(super) async fn serves(&self) {
        self.wait(true).await;
    }

    /// Waits until this tunnel does not serve the process.
    pub(super) async fn is_replaced(&self) {
        self.wait(false).await;
    }

    async fn wait(&self, serves: bool) {
        let mut tunnels = self.process.tunnels.subscribe();
        let is_serving = |tunnels: &[ServingRank]| {
            tunnels.iter().min().is_some_and(|serving| serving.number == self.number)
        };
        // The sender lives as long as the process, which this tunnel holds.
        let _ = tunnels.wait_for(|tunnels| is_serving(tunnels) == serves).await;
    }
}

impl Drop for ProcessTunnel {
    fn drop(&mut self) {
        self.process.tunnels.send_modify(|tunnels| tunnels.retain(|tunnel| tunnel.number != self.number));
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    /// Returns which of the tunnels serve the process.
    fn serving<const N: usize>(tunnels: [&ProcessTunnel; N]) -> [bool; N] {
        tunnels.map(|tunnel| {
            let serves = tunnel.serves().now_or_never().is_some();
            assert_ne!(serves, tunnel.is_replaced().now_or_never().is_some());
            serves
        })
    }

    #[test]
    fn oldest_tunnel_serves_until_it_ends_or_drains() {
        let process = Arc::<AgentProcess>::default();
        let [first, second, third] = [0, 1, 2].map(|index| process.join(index));
        assert_eq!(serving([&first, &second, &third]), [true, false, false]);
        first.drain();
        assert_eq!(serving([&first, &second, &third]), [false, true, false]);
        drop(second);
        assert_eq!(serving([&first, &third]), [false, true]);
        third.drain();
        assert_eq!(serving([&first, &third]), [true, false], "of those that drain, the oldest");
        let fourth = process.join(3);
        assert_eq!(serving([&first, &third, &fourth]), [false, false, true]);
    }

    #[test]
    fn tunnel_that_agentk_has_opened_anew_does_not_serve() {
        let process = Arc::<AgentProcess>::default();
        let [first, second] = [0, 1].map(|index| process.join(index));
        let again = process.join(0);
        assert_eq!(serving([&first, &second, &again]), [false, true, false]);
        let second_again = process.join(1);
        assert_eq!(serving([&first, &second, &again, &second_again]), [false, false, true, false]);
    }
}
