//! The shares of agents and of their projects in the slots for programs.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use parking_lot::Mutex;
use proto::AgentId;
use tokio::sync::oneshot;

/// Limits the programs that run at the same time. One agent has at most half of the slots, and a free slot goes to the waiting agent that
/// has the fewest, or had its turn first, and so to its projects: no number of jobs of one agent delays another one by more than one.
#[derive(Debug)]
pub(crate) struct Shares(Arc<Mutex<ShareState>>);

/// The right to run a program.
#[derive(Debug)]
pub(crate) struct RenderPermit {
    shares: Arc<Mutex<ShareState>>,
    share: Share,
}

/// The agent and the project for which a program runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share {
    /// The agent.
    pub agent: AgentId,
    /// The id of the project.
    pub project: String,
}

#[derive(Debug)]
struct ShareState {
    free: usize,
    /// The most slots of one agent.
    of_agent: usize,
    running: BTreeMap<Share, usize>,
    /// The numbers of the last permits of those that run or wait.
    served: BTreeMap<Share, u64>,
    permits: u64,
    /// In the order of their arrival.
    waiting: VecDeque<(Share, oneshot::Sender<RenderPermit>)>,
}

impl Shares {
    pub(crate) fn new(slots: usize) -> Self {
        Self(Arc::new(Mutex::new(ShareState {
            free: slots,
            of_agent: (slots / 2).max(1),
            running: BTreeMap::new(),
            served: BTreeMap::new(),
            permits: 0,
            waiting: VecDeque::new(),
        })))
    }

    /// Waits for a slot.
    ///
    /// # Cancellation safety
    ///
    /// Dropping the future leaves the queue.
    pub(crate) async fn acquire(&self, share: Share) -> RenderPermit {
        let (sender, permit) = oneshot::channel();
        self.0.lock().waiting.push_back((share, sender));
        dispatch(&self.0);
        permit.await.expect("an entry leaves the queue with a permit only, or without a receiver")
    }
}

impl Drop for RenderPermit {
    fn drop(&mut self) {
        {
            let mut state = self.shares.lock();
            state.free += 1;
            if let Some(running) = state.running.get_mut(&self.share) {
                *running -= 1;
                if *running == 0 {
                    state.running.remove(&self.share);
                }
            }
        }
        dispatch(&self.shares);
    }
}

/// Gives the free slots to those that wait.
fn dispatch(shares: &Arc<Mutex<ShareState>>) {
    loop {
        let next = shares.lock().next();
        let Some((share, sender)) = next else { return };
        // A permit that nobody waits for any more gives its slot back, outside of the lock.
        drop(sender.send(RenderPermit { shares: Arc::clone(shares), share }));
    }
}

impl ShareState {
    /// Takes a slot for an entry of the queue, if there is one for it.
    fn next(&mut self) -> Option<(Share, oneshot::Sender<RenderPermit>)> {
        self.waiting.retain(|(_, sender)| !sender.is_closed());
        if self.free == 0 {
            return None;
        }
        let Self { running, waiting, served, .. } = self;
        served.retain(|share, _| {
            running.contains_key(share) || waiting.iter().any(|(waiting, _)| waiting.agent == share.agent)
        });
        let of_agent = |agent: AgentId| running.iter().filter(move |(share, _)| share.agent == agent);
        let count = |agent: AgentId| of_agent(agent).map(|(_, running)| *running).sum::<usize>();
        let turn = |agent: AgentId| {
            served.iter().filter(|(share, _)| share.agent == agent).map(|(_, turn)| *turn).max()
        };
        let order = |share: &Share| {
            let of_project = (running.get(share).copied(), served.get(share).copied());
            (count(share.agent), turn(share.agent), of_project)
        };
        let allowed = waiting.iter().enumerate().filter(|(_, (share, _))| count(share.agent) < self.of_agent);
        let (index, _) = allowed.min_by_key(|(_, (share, _))| order(share))?;
        let (share, sender) = self.waiting.remove(index)?;
        self.free -= 1;
        self.permits += 1;
        self.served.insert(share.clone(), self.permits);
        *self.running.entry(share.clone()).or_default() += 1;
        Some((share, sender))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn share(agent: u64, project: &str) -> Share {
        Share { agent: AgentId(agent), project: project.to_owned() }
    }

    #[tokio::test]
    async fn one_agent_leaves_slots_to_others() {
        let shares = Shares::new(4);
        let first = shares.acquire(share(1, "a")).await;
        let _second = shares.acquire(share(1, "b")).await;
        let mut third = Box::pin(shares.acquire(share(1, "c")));
        assert!((&mut third).now_or_never().is_none(), "it has half of the slots");
        let other = shares.acquire(share(2, "a")).now_or_never().expect("another agent does not wait");
        drop(other);
        assert!((&mut third).now_or_never().is_none());
        drop(first);
        assert!(third.now_or_never().is_some());
    }

    /// Returns the shares in the order in which they have a slot.
    fn order(slots: &Shares, running: RenderPermit, waiting: &[Share]) -> Vec<Share> {
        let mut waiting: Vec<_> =
            waiting.iter().map(|share| Some(Box::pin(slots.acquire(share.clone())))).collect();
        for each in waiting.iter_mut().flatten() {
            assert!(each.now_or_never().is_none(), "there is one slot");
        }
        let (mut order, mut running) = (Vec::new(), Some(running));
        while running.take().is_some() {
            for entry in &mut waiting {
                if let Some(permit) = entry.as_mut().and_then(|waiting| waiting.now_or_never()) {
                    *entry = None;
                    order.push(permit.share.clone());
                    running = Some(permit);
                    break;
                }
            }
        }
        order
    }

    #[tokio::test]
    async fn agents_and_their_projects_take_turns() {
        let slots = Shares::new(1);
        let running = slots.acquire(share(1, "a")).await;
        let mut waiting = vec![share(1, "a"); 50];
        waiting.extend([share(1, "b"), share(2, "x"), share(2, "x")]);
        let order = order(&slots, running, &waiting);
        let first = [share(2, "x"), share(1, "b"), share(2, "x"), share(1, "a")];
        assert_eq!((order.len(), &order[..4]), (53, &first[..]));
        assert!(slots.0.lock().running.is_empty());
    }

    #[tokio::test]
    async fn job_that_is_cancelled_takes_no_slot() {
        let slots = Shares::new(1);
        let running = slots.acquire(share(1, "a")).await;
        let mut cancelled = Box::pin(slots.acquire(share(2, "a")));
        let mut granted = Box::pin(slots.acquire(share(3, "a")));
        assert!((&mut cancelled).now_or_never().is_none() && (&mut granted).now_or_never().is_none());
        drop(cancelled);
        drop(running);
        // It has a permit that it has not seen.
        drop(granted);
        assert!(slots.acquire(share(4, "a")).now_or_never().is_some());
    }
}
