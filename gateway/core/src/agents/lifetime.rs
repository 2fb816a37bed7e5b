//! Detects that a load balancer cuts connections at an age: tunnels keep breaking off at the same age.
//!
//! An agent can end its tunnels at any age that it chooses. So the losses of one agent only tell something about its own tunnels. The
//! losses of several agents from several addresses tell something about those of all agents.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    time::Duration,
};

use proto::{AgentId, InstanceId};
use tokio::time::Instant;

/// The number of losses that indicate a cut age. For all agents, each loss is of another agent.
const MIN_LOSSES: usize = 5;

/// The fewest addresses of clients from which all agents lose their tunnels. Behind a load balancer that does not tell the addresses,
/// the addresses are its own.
const MIN_ADDRESSES: usize = 2;

/// The difference between two ages that count as the same, relative to the age.
///
/// It is also the least time between two losses that count. Tunnels that were opened together break off together at any
/// failure of the network: if their ends are this far apart, their ages are too different.
const TOLERANCE: f64 = 0.03;

/// The shortest cut age of one agent. Tunnels that end earlier were never useful, for example because agentk crashes at its start.
const MIN_AGE_OF_AGENT: Duration = Duration::from_secs(10);

/// The shortest cut age of all agents. A shorter one is found for each agent.
const MIN_AGE_OF_ALL: Duration = Duration::from_secs(60);

/// The processes whose losses are remembered. If none of them has lost two tunnels, agentk itself ends, and no connection is cut.
const PROCESSES: usize = 16;

/// A cut age is forgotten this long after the last loss at it. If a load balancer still cuts, it is found again after as many losses.
const KEPT: Duration = Duration::from_secs(24 * 3600);

/// The number of agents from which those without a recent loss are removed.
const PRUNED_AGENTS: usize = 1024;

/// A tunnel that broke off.
#[derive(Clone, Copy, Debug)]
pub(super) struct Loss {
    pub(super) agent: AgentId,
    /// The process of agentk.
    pub(super) instance: InstanceId,
    /// A digest of the address of the agent.
    pub(super) address: [u8; 16],
    pub(super) age: Duration,
    pub(super) at: Instant,
}

/// A cut age that a loss has revealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DetectedLifetime {
    /// All agents lose their tunnels at this age.
    OfAll(Duration),
    /// The agent of the loss loses its tunnels at this age.
    OfAgent(Duration),
}

/// The cut ages of all agents, and of each one.
#[derive(Debug, Default)]
pub(super) struct LifetimeDetector {
    all: Detector,
    agents: HashMap<AgentId, Detector>,
    pruned: usize,
}

impl LifetimeDetector {
    /// Records that a tunnel broke off. Returns the cut age that this loss reveals.
    pub(super) fn record_loss(&mut self, loss: Loss) -> Option<DetectedLifetime> {
        if self.agents.len() >= PRUNED_AGENTS.max(2 * self.pruned) {
            self.agents.retain(|_, detector| detector.is_recent(loss.at));
            self.pruned = self.agents.len();
        }
        let of_agent = self.agents.entry(loss.agent).or_default().record(loss, MIN_AGE_OF_AGENT, 1);
        self.all.losses.retain(|earlier| earlier.agent != loss.agent);
        let of_all = self.all.record(loss, MIN_AGE_OF_ALL, MIN_ADDRESSES);
        let known = |age: &Duration| !self.all.cut.is_some_and(|cut| is_same(cut.age, *age));
        of_all.map(DetectedLifetime::OfAll).or_else(|| of_agent.filter(known).map(DetectedLifetime::OfAgent))
    }

    /// Returns the age at which the tunnels of an agent are cut, if it is known.
    pub(super) fn of(&self, agent: AgentId, now: Instant) -> Option<Duration> {
        let own = self.agents.get(&agent).and_then(|detector| detector.cut_age(now));
        self.all.cut_age(now).into_iter().chain(own).min()
    }
}

/// Detects one cut age from the last losses.
#[derive(Debug, Default)]
struct Detector {
    losses: VecDeque<Loss>,
    /// The processes of the last losses.
    processes: VecDeque<InstanceId>,
    cut: Option<Cut>,
}

#[derive(Clone, Copy, Debug)]
struct Cut {
    age: Duration,
    /// The time of the last loss at this age.
    confirmed: Instant,
}

impl Detector {
    fn record(&mut self, loss: Loss, min_age: Duration, min_addresses: usize) -> Option<Duration> {
        if self.cut.take_if(|cut| loss.at > cut.confirmed + KEPT).is_some() {
            self.losses.clear();
        }
        if let Some(cut) = &mut self.cut
            && is_same(cut.age, loss.age)
        {
            cut.confirmed = loss.at;
        }
        let tolerance = loss.age.mul_f64(TOLERANCE);
        if let Some(last) = self.losses.back()
            && last.age.abs_diff(loss.age) <= tolerance
            && loss.at < last.at + tolerance
        {
            return None;
        }
        self.losses.push_back(loss);
        if self.losses.len() > MIN_LOSSES {
            self.losses.pop_front();
        }
        self.processes.push_back(loss.instance);
        if self.processes.len() > PROCESSES {
            self.processes.pop_front();
        }

        let ages = || self.losses.iter().map(|loss| loss.age);
        let (shortest, mean) = (ages().min()?, ages().sum::<Duration>() / MIN_LOSSES as u32);
        let same = |other: Duration| other.abs_diff(mean) <= mean.mul_f64(TOLERANCE);
        let addresses: HashSet<_> = self.losses.iter().map(|loss| loss.address).collect();
        let found = self.losses.len() == MIN_LOSSES
            && shortest >= min_age
            && addresses.len() >= min_addresses
            && (min_addresses > 1 || self.has_survivor())
            && ages().all(same);
        if !found || self.cut.is_some_and(|cut| same(cut.age)) {
            return None;
        }
        self.cut = Some(Cut { age: shortest, confirmed: loss.at });
        Some(shortest)
    }

    /// Returns whether a process has lost more than one tunnel, so that it did not end with the first one.
    fn has_survivor(&self) -> bool {
        let distinct: HashSet<&InstanceId> = self.processes.iter().collect();
        distinct.len() < self.processes.len()
    }

    fn cut_age(&self, now: Instant) -> Option<Duration> {
        self.cut.filter(|cut| now <= cut.confirmed + KEPT).map(|cut| cut.age)
    }

    fn is_recent(&self, now: Instant) -> bool {
        self.losses.back().is_some_and(|loss| now <= loss.at + KEPT)
    }
}

/// Compares a detected age, the shortest of some losses, with that of a loss: both differ from the mean of the losses.
fn is_same(cut: Duration, age: Duration) -> bool {
    cut.abs_diff(age) <= cut.mul_f64(2.0 * TOLERANCE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: u64 = 24 * 3600;

    /// Cut ages, and losses at seconds since a start.
    struct Losses {
        ages: LifetimeDetector,
        start: Instant,
    }

    impl Losses {
        fn new() -> Self {
            Self { ages: LifetimeDetector::default(), start: Instant::now() }
        }

        /// Records the loss of a tunnel of an agent with one of its addresses.
        fn record(&mut self, agent: u64, address: u8, at: u64, age: u64) -> Option<DetectedLifetime> {
            self.record_of(InstanceId::from_bytes(u128::from(agent).to_be_bytes()), agent, address, at, age)
        }

        /// Records the loss of a tunnel of a process.
        fn record_of(
            &mut self,
            instance: InstanceId,
            agent: u64,
            address: u8,
            at: u64,
            age: u64,
        ) -> Option<DetectedLifetime> {
            self.ages.record_loss(Loss {
                agent: AgentId(agent),
                instance,
                address: [address; 16],
                age: Duration::from_secs(age),
                at: self.start + Duration::from_secs(at),
            })
        }

        fn of(&self, agent: u64, at: u64) -> Option<u64> {
            self.ages.of(AgentId(agent), self.start + Duration::from_secs(at)).map(|age| age.as_secs())
        }
    }

    fn of_all(age: u64) -> Option<DetectedLifetime> {
        Some(DetectedLifetime::OfAll(Duration::from_secs(age)))
    }

    /// Returns the results for losses of one agent: pairs of the second of the loss and the age in seconds.
    fn results(losses: &[(u64, u64)]) -> Vec<Option<u64>> {
        let mut all = Losses::new();
        let lost = |(at, age): &(u64, u64)| match all.record(1, 1, *at, *age) {
            None => None,
            Some(DetectedLifetime::OfAgent(age)) => Some(age.as_secs()),
            Some(DetectedLifetime::OfAll(age)) => panic!("one agent revealed {age:?} for all"),
        };
        losses.iter().map(lost).collect()
    }

    fn last(losses: &[(u64, u64)]) -> Option<u64> {
        results(losses).pop().unwrap()
    }

    #[test]
    fn losses_of_five_agents_at_one_age_reveal_it_for_all() {
        let mut losses = Losses::new();
        for agent in 1..5 {
            assert_eq!(losses.record(agent, agent as u8, agent * 100, 600), None);
        }
        assert_eq!(losses.record(5, 5, 500, 602), of_all(600));
        assert_eq!(losses.of(99, 501), Some(600));
        assert_eq!(losses.record(6, 6, 600, 601), None, "it is known");
    }

    #[test]
    fn losses_of_one_agent_tell_nothing_about_another() {
        let mut losses = Losses::new();
        for round in 1..=20 {
            losses.record(1, round as u8, round * 100, 90);
        }
        assert_eq!((losses.of(1, 2001), losses.of(2, 2001)), (Some(90), None));
    }

    #[test]
    fn losses_from_one_address_tell_nothing_about_other_agents() {
        let mut losses = Losses::new();
        for agent in 1..=20 {
            assert_eq!(losses.record(agent, 1, agent * 100, 90), None);
        }
        assert_eq!(losses.of(1, 2001), None);
    }

    #[test]
    fn ages_below_a_minute_are_found_for_each_agent_only() {
        let mut losses = Losses::new();
        for (round, agent) in (0..30).zip([1, 2, 3, 4, 5, 6].iter().cycle()) {
            assert!(!matches!(
                losses.record(*agent, *agent as u8, round * 10, 59),
                Some(DetectedLifetime::OfAll(_))
            ));
        }
        assert_eq!((losses.of(1, 300), losses.of(7, 300)), (Some(59), None));
    }

    #[test]
    fn agent_with_other_ages_hides_the_cut_age_of_no_agent() {
        let mut losses = Losses::new();
        for round in 1..=5 {
            for agent in 1..=5 {
                losses.record(agent, agent as u8, round * 600 + agent * 60, 600);
                losses.record(6, 6, round * 600 + agent * 60 + 1, 7 * round * agent);
            }
        }
        assert!((1..=5).all(|agent| losses.of(agent, 3700) == Some(600)));
    }

    #[test]
    fn age_is_forgotten_a_day_after_the_last_loss_at_it() {
        let mut losses = Losses::new();
        for agent in 1..=5 {
            losses.record(agent, agent as u8, agent * 100, 600);
        }
        losses.record(3, 3, DAY, 610);
        assert_eq!((losses.of(9, 2 * DAY), losses.of(9, 2 * DAY + 1)), (Some(600), None));
        for agent in 1..=4 {
            assert_eq!(losses.record(agent, agent as u8, 3 * DAY + agent * 100, 600), None, "{agent}");
        }
        assert_eq!(losses.record(5, 5, 3 * DAY + 500, 600), of_all(600), "it is found again");
    }

    #[test]
    fn agents_without_recent_losses_are_removed() {
        let mut losses = Losses::new();
        for agent in 0..5 * PRUNED_AGENTS as u64 {
            losses.record(agent, 1, agent * 3600, 600);
        }
        assert!(losses.ages.agents.len() <= PRUNED_AGENTS, "{}", losses.ages.agents.len());
    }

    #[test]
    fn fifth_loss_at_one_age_reveals_it_once() {
        let losses =
            [(600, 600), (1200, 605), (1800, 598), (2400, 600), (3000, 612), (3600, 600), (9000, 601)];
        assert_eq!(results(&losses), [None, None, None, None, Some(598), None, None]);
    }

    #[test]
    fn ages_may_differ_by_three_percent_from_their_mean() {
        assert_eq!(last(&[(0, 1000), (100, 1000), (200, 1000), (300, 1000), (400, 1035)]), Some(1000));
        assert_eq!(last(&[(0, 1000), (100, 1000), (200, 1000), (300, 1000), (400, 1045)]), None);
    }

    #[test]
    fn loss_at_another_age_restarts_the_count() {
        let mut losses =
            vec![(30, 30), (60, 30), (90, 30), (91, 7000), (120, 30), (150, 30), (180, 30), (210, 30)];
        assert_eq!(last(&losses), None);
        losses.push((240, 30));
        assert_eq!(last(&losses), Some(30));
    }

    #[test]
    fn tunnels_that_were_opened_together_and_break_off_together_reveal_nothing() {
        // A network fails after 300 s, and pings detect it within 40 s.
        let losses: Vec<_> = (0..=400).map(|tenth| (300 + tenth / 10, 300 + tenth / 10)).collect();
        assert!(results(&losses).iter().all(Option::is_none));
    }

    #[test]
    fn tunnels_of_one_agent_that_are_cut_together_count_once() {
        let rounds: Vec<_> = (1..=5).flat_map(|round| [(round * 30, 30); 2]).collect();
        let results = results(&rounds);
        assert_eq!((results[7], results[8]), (None, Some(30)));
    }

    #[test]
    fn agent_that_crashes_at_its_start_reveals_nothing() {
        let losses: Vec<_> = (1..20).map(|round| (round * 5, 3)).collect();
        assert!(results(&losses).iter().all(Option::is_none));
    }

    /// Out of memory, for example.
    #[test]
    fn agent_that_ends_at_one_age_reveals_nothing_until_a_process_survives() {
        let mut losses = Losses::new();
        for round in 1..=20 {
            assert_eq!(losses.record_of(InstanceId::random(), 1, 1, round * 40, 30), None);
        }
        let pods = [InstanceId::random(), InstanceId::random()];
        let of_pods: Vec<_> = (21..=24)
            .zip(pods.iter().cycle())
            .map(|(round, pod)| losses.record_of(*pod, 1, 1, round * 40, 30))
            .collect();
        assert!(of_pods.iter().any(Option::is_some), "{of_pods:?}");
    }

    #[test]
    fn another_age_is_revealed_later() {
        let mut losses: Vec<_> = (1..=5).map(|round| (round * 600, 600)).collect();
        losses.extend((1..=5).map(|round| (5000 + round * 60, 60)));
        assert_eq!(last(&losses), Some(60));
    }
}
