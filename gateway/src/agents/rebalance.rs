//! Moves tunnels to other replicas, as [`Rebalancer`] decides.

use std::{cmp::Reverse, collections::HashMap, collections::HashSet, time::Duration};

use proto::AgentId;
use router::TunnelView;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::{AgentServer, Rebalancer};
use crate::tunnel_entry::TunnelEntry;

/// The interval in which the load is published and compared.
const TICK: Duration = Duration::from_secs(1);

impl AgentServer {
    /// Publishes the load of this replica and moves tunnels, until the replica drains.
    pub async fn rebalance(&self, mut rebalancer: Rebalancer) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while self.connections.draining.run_until_cancelled(ticks.tick()).await.is_some() {
            let mut tunnels = self.tunnels.views();
            tunnels.retain(|view| !view.is_draining() && !view.handle().move_requested.is_cancelled());
            let own = u32::try_from(tunnels.len()).unwrap_or(u32::MAX);
            self.store.set_load(self.replica, Some(own));
            let loads = self.store.loads();
            let others = loads.into_iter().filter(|(replica, _)| *replica != self.replica);
            let others: Vec<u32> = others.map(|(_, tunnels)| tunnels).collect();
            let count = rebalancer.moves_due(own, &others, Instant::now());
            if count == 0 {
                continue;
            }
            self.start_moves(tunnels, count as usize);
            if self.log_limit.admit("rebalance", std::time::Instant::now()).is_some() {
                tracing::info!(tunnels = own, ?others, "moving tunnels to other replicas, which have fewer");
            }
        }
        self.store.set_load(self.replica, None);
    }

    /// Moves the tunnels with the fewest requests first, those of agents with several tunnels before others, and one of each
    /// agent before the second of any.
    fn start_moves(&self, mut tunnels: Vec<TunnelView<TunnelEntry>>, count: usize) {
        let mut tunnels_of_agent: HashMap<AgentId, usize> = HashMap::new();
        for view in &tunnels {
            *tunnels_of_agent.entry(view.agent).or_default() += 1;
        }
        tunnels.sort_by_cached_key(|view| {
            let (short, long) =
                view.services().fold((0, 0), |(short, long), (_, now)| (short + now.short, long + now.long));
            (long, Reverse(tunnels_of_agent[&view.agent]), short, rand::random::<u32>())
        });
        let mut seen = HashSet::new();
        let (first, more): (Vec<_>, Vec<_>) = tunnels.into_iter().partition(|view| seen.insert(view.agent));
        for view in first.into_iter().chain(more).take(count) {
            view.handle().move_requested.cancel();
            self.metrics.rebalanced.inc();
        }
    }
}
