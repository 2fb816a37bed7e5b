//! Gives tunnels away where this replica has more than its share, as [`Balance`] decides.

use std::{cmp::Reverse, collections::HashMap, collections::HashSet, time::Duration};

use proto::AgentId;
use router::View;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::{Agents, Balance};
use crate::connected::Connected;

/// How often the others are told, and it is decided.
const TICK: Duration = Duration::from_secs(1);

impl Agents {
    /// Until this replica leaves: then it takes none.
    pub async fn rebalance(&self, mut balance: Balance) {
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while self.leaving.run_until_cancelled(ticks.tick()).await.is_some() {
            let mut tunnels = self.tunnels.views();
            tunnels.retain(|view| !view.is_draining() && !view.handle().moving.is_cancelled());
            let own = u32::try_from(tunnels.len()).unwrap_or(u32::MAX);
            self.store.tell_load(self.replica, Some(own));
            let loads = self.store.loads();
            let others = loads.into_iter().filter(|(replica, _)| *replica != self.replica);
            let others: Vec<u32> = others.map(|(_, tunnels)| tunnels).collect();
            let count = balance.ask(own, &others, Instant::now());
            if count == 0 {
                continue;
            }
            self.give_away(tunnels, count as usize);
            if self.refusals.admit("rebalance", std::time::Instant::now()).is_some() {
                tracing::info!(
                    tunnels = own,
                    ?others,
                    "tunnels are asked to go to other replicas, which have fewer"
                );
            }
        }
        self.store.tell_load(self.replica, None);
    }

    /// Those that carry the least, of agents that have several here first; of each agent one at a time.
    fn give_away(&self, mut tunnels: Vec<View<Connected>>, count: usize) {
        let mut crowd: HashMap<AgentId, usize> = HashMap::new();
        for view in &tunnels {
            *crowd.entry(view.agent).or_default() += 1;
        }
        tunnels.sort_by_cached_key(|view| {
            let (short, long) =
                view.services().fold((0, 0), |(short, long), (_, now)| (short + now.short, long + now.long));
            (long, Reverse(crowd[&view.agent]), short, rand::random::<u32>())
        });
        let mut seen = HashSet::new();
        let (first, more): (Vec<_>, Vec<_>) = tunnels.into_iter().partition(|view| seen.insert(view.agent));
        for view in first.into_iter().chain(more).take(count) {
            view.handle().moving.cancel();
            self.metrics.rebalanced.inc();
        }
    }
}
