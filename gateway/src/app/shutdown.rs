//! Stops a replica in phases. Each phase has a deadline, so that a task that hangs delays the end but cannot prevent it.

use std::time::Duration;

use cores::TaskGroup;
use tokio::time::{Instant, sleep_until};

use kas_core::admin::Readiness;

/// The time that agents may take to leave after the requests in flight. An agent needs a few round trips for another tunnel.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// The time for agents after the last grace period, and for background tasks after the agents. Both, and the exit of the
/// process, fit into one second.
const CLEANUP_TIMEOUT: Duration = Duration::from_millis(400);

/// The grace periods of the configuration.
#[derive(Clone, Copy, Debug)]
pub(super) struct GracePeriods {
    /// `agent.kubernetes_api.listen.listen_grace_period`: connections are still accepted.
    pub(super) accept: Duration,
    /// `agent.kubernetes_api.listen.shutdown_grace_period`: after that, requests in flight may finish.
    pub(super) requests: Duration,
    /// `private_api.listen.listen_grace_period`: after `accept`, in parallel to `requests`, new requests of other replicas are
    /// still served.
    pub(super) peers: Duration,
}

/// The latest end of each phase, as time since the shutdown began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Deadlines {
    /// No more connections are accepted.
    accept: Duration,
    /// No more requests of other replicas are accepted.
    peer_requests: Duration,
    /// Callers' connections are cut.
    callers: Duration,
    /// Connections of other replicas are cut.
    peers: Duration,
    /// Tunnels are cut.
    agents: Duration,
    /// Background tasks are cut, and the shutdown is over.
    end: Duration,
}

impl From<GracePeriods> for Deadlines {
    fn from(grace: GracePeriods) -> Self {
        let callers = grace.accept + grace.requests;
        let peer_requests = grace.accept + grace.peers;
        let sum = grace.accept + grace.requests + grace.peers;
        Self {
            accept: grace.accept,
            peer_requests,
            callers,
            peers: callers.max(peer_requests),
            agents: sum + CLEANUP_TIMEOUT,
            end: sum + 2 * CLEANUP_TIMEOUT,
        }
    }
}

/// The parts of a replica, which end in this order:
///
/// 1. The replica is not ready, so that load balancers send no new connections. It still accepts them for
///    `listen_grace_period`, and closes those of callers after their next response.
/// 2. It accepts no more connections of callers and agents. Callers' idle connections close. Agents are asked to leave:
///    each opens a tunnel to another replica before it closes the one to this replica.
/// 3. Requests of callers finish, and [watches](tunnel::WatchEnds) end. After `shutdown_grace_period` their connections are cut.
/// 4. Meanwhile other replicas are served. Their new requests are accepted for `private_api.listen.listen_grace_period`,
///    until their route store has the new owners of the agents. Their requests in flight may finish until the later end of both
///    periods. Then their connections are cut.
/// 5. Agents leave. After [`LEAVE_TIMEOUT`] their tunnels are cut: an agent without another replica may never leave.
/// 6. Background tasks end: the last spans are exported, and this replica is removed from Redis. Then they are cut.
///
/// All of it takes at most the sum of the three periods and one second.
#[derive(Debug)]
pub(super) struct Shutdown {
    pub(super) grace: GracePeriods,
    pub(super) readiness: Readiness,
    /// Connections of callers.
    pub(super) callers: TaskGroup,
    /// Connections and requests of other replicas.
    pub(super) peers: TaskGroup,
    /// Tunnels, and connections that become tunnels.
    pub(super) agents: TaskGroup,
    /// Accept loops and other tasks that run as long as the replica.
    pub(super) background: TaskGroup,
}

impl Shutdown {
    /// Runs all phases. Afterwards every group has been drained and cut.
    pub(super) async fn run(self) {
        let Self { grace, readiness, callers, peers, agents, background } = self;
        let (start, deadlines) = (Instant::now(), Deadlines::from(grace));

        readiness.set_stopping();
        callers.leaving.cancel();
        tracing::info!(grace = ?grace.accept, "stopping: not ready, but still accepting connections");
        sleep_until(start + deadlines.accept).await;

        tracing::info!(grace = ?grace.requests, "stopping: finishing requests in flight");
        agents.drain();
        let callers = async {
            if !callers.drain_until(start + deadlines.callers).await {
                tracing::warn!("stopping: the grace period is over, requests in flight are cut");
            }
        };
        let peers = async {
            // Without such connections there is nothing to wait for.
            if !peers.tasks.is_empty() {
                sleep_until(start + deadlines.peer_requests).await;
            }
            if !peers.drain_until(start + deadlines.peers).await {
                tracing::warn!("stopping: the grace period is over, requests of other replicas are cut");
            }
        };
        tokio::join!(callers, peers);

        let leave = Instant::now() + LEAVE_TIMEOUT;
        if agents.drain_until(leave.min(start + deadlines.agents)).await {
            tracing::info!("stopped: all agents have left")
        } else {
            tracing::info!("stopped: tunnels of agents without another replica are cut")
        }
        if !background.drain_until(start + deadlines.end).await {
            tracing::warn!("stopped: background tasks that did not end are cut");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{future::pending, iter};

    use tokio_util::sync::CancellationToken;

    use super::*;

    /// The three periods in each order, and with each of them at zero.
    fn orders() -> impl Iterator<Item = GracePeriods> {
        let seconds = [[1, 5, 30], [1, 30, 5], [5, 1, 30], [5, 30, 1], [30, 1, 5], [30, 5, 1]];
        let zeros = [[0, 5, 30], [0, 30, 5], [5, 0, 30], [30, 0, 5], [5, 30, 0], [30, 5, 0], [0, 0, 0]];
        seconds.into_iter().chain(zeros).map(|periods| {
            let [accept, requests, peers] = periods.map(Duration::from_secs);
            GracePeriods { accept, requests, peers }
        })
    }

    fn shutdown(grace: GracePeriods) -> Shutdown {
        let [callers, peers, agents, background] = [(); 4].map(|()| TaskGroup::default());
        Shutdown { grace, readiness: Readiness::default(), callers, peers, agents, background }
    }

    /// Reports when a token is cancelled, as time since now.
    fn moment(token: &CancellationToken) -> impl Future<Output = Duration> + use<> {
        let (start, token) = (Instant::now(), token.clone());
        async move {
            token.cancelled().await;
            start.elapsed()
        }
    }

    #[test]
    fn deadlines_are_in_order_and_within_the_sum_and_a_second() {
        for grace in orders() {
            let at = Deadlines::from(grace);
            let sum = grace.accept + grace.requests + grace.peers;
            assert!(at.accept <= at.callers && at.accept <= at.peer_requests, "{at:?}");
            assert!(at.callers <= at.peers && at.peer_requests <= at.peers, "{at:?}");
            assert!(at.peers < at.agents && at.agents < at.end, "{at:?}");
            assert!(at.end < sum + Duration::from_secs(1), "{at:?}");
        }
    }

    /// The tasks ignore both steps, like a task that hangs.
    #[tokio::test(start_paused = true)]
    async fn hanging_tasks_are_cut_at_their_deadlines_in_each_order_of_periods() {
        for grace in orders() {
            let at = Deadlines::from(grace);
            let shutdown = shutdown(grace);
            let Shutdown { callers, peers, agents, background, .. } = &shutdown;
            for group in [callers, peers, agents, background] {
                group.tasks.spawn(pending::<()>());
            }
            let moments = [
                (moment(&callers.draining), at.accept),
                (moment(&agents.draining), at.accept),
                (moment(&peers.draining), at.peer_requests),
                (moment(&callers.cut), at.callers),
                (moment(&peers.cut), at.peers),
                (moment(&agents.cut), at.agents.min(at.peers + LEAVE_TIMEOUT)),
                (moment(&background.draining), at.agents.min(at.peers + LEAVE_TIMEOUT)),
                (moment(&background.cut), at.end),
            ];
            let (seen, expected): (Vec<_>, Vec<_>) = moments.into_iter().unzip();
            let running = tokio::spawn(shutdown.run());
            let seen = futures_util::future::join_all(seen).await;
            running.await.unwrap();
            for (index, (seen, expected)) in iter::zip(seen, expected).enumerate() {
                // The clock of tokio has a resolution of a millisecond.
                assert!(
                    seen >= expected && seen <= expected + Duration::from_millis(1),
                    "{index}: {grace:?}"
                );
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn groups_without_tasks_end_with_the_first_period() {
        let grace = GracePeriods {
            accept: Duration::from_secs(5),
            requests: Duration::from_secs(3600),
            peers: Duration::from_secs(5),
        };
        let start = Instant::now();
        shutdown(grace).run().await;
        assert_eq!(start.elapsed(), grace.accept);
    }

    #[tokio::test(start_paused = true)]
    async fn agents_get_their_timeout_once_requests_have_finished() {
        let grace = GracePeriods {
            accept: Duration::ZERO,
            requests: Duration::from_secs(3600),
            peers: Duration::ZERO,
        };
        let (start, shutdown) = (Instant::now(), shutdown(grace));
        shutdown.callers.spawn(tokio::time::sleep(Duration::from_secs(60)));
        shutdown.agents.spawn(pending());
        shutdown.run().await;
        assert_eq!(start.elapsed(), Duration::from_secs(60) + LEAVE_TIMEOUT);
    }
}
