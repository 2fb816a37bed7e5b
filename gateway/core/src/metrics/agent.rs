//! The agents as metrics: their states, the versions of agentk, and whether each of them is connected.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::Arc,
};

use parking_lot::Mutex;
use prometheus_client::{encoding::DescriptorEncoder, registry::Registry};
use strum::{EnumCount, VariantNames};
use telemetry::{RegistryExt as _, encode_gauges};

/// The most versions with a series of their own.
const MAX_VERSIONS: usize = 10;

/// The longest version with a series of its own, in bytes.
const MAX_VERSION: usize = 32;

/// The label of the instances without a series of their own.
const OTHER: &str = "other";

/// The connection of an agent to any replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, EnumCount, VariantNames)]
#[strum(serialize_all = "kebab-case")]
pub(crate) enum AgentConnection {
    /// It has a tunnel.
    Connected,
    /// It was connected.
    Away,
    /// It was never connected.
    Never,
    /// It may be connected to another replica: this is not known.
    Unknown,
}

/// An agent, as the metrics show it.
#[derive(Clone, Debug)]
pub(crate) struct AgentSample {
    /// The label: unique, and without characters that need escaping.
    pub label: String,
    pub connection: AgentConnection,
}

/// The numbers of one scrape.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct AgentCounts {
    states: [u64; AgentConnection::COUNT],
    versions: Vec<(String, u64)>,
    up: BTreeMap<String, bool>,
}

/// Encodes the newest `AgentCounts`. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct AgentGauges(Arc<Mutex<AgentCounts>>);

impl AgentCounts {
    /// Counts agents, and their agentk processes by version. At most `max_agents` agents get a series of their own: those that
    /// have been connected come first, in order of their labels.
    pub(crate) fn new<'a>(
        mut agents: Vec<AgentSample>,
        versions: impl IntoIterator<Item = &'a str>,
        max_agents: usize,
    ) -> Self {
        let mut states = [0; AgentConnection::COUNT];
        for agent in &agents {
            states[agent.connection as usize] += 1;
        }
        let order = |agent: &AgentSample| agent.connection >= AgentConnection::Never;
        agents.sort_by(|one, other| (order(one), &one.label).cmp(&(order(other), &other.label)));
        let mut up = BTreeMap::new();
        for AgentSample { label, connection } in agents.into_iter().take(max_agents) {
            *up.entry(label).or_default() |= connection == AgentConnection::Connected;
        }
        Self { states, versions: count_versions(versions), up }
    }

    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let help = "Agents by their connection to any replica";
        let states = AgentConnection::VARIANTS.iter().zip(self.states);
        let states = states.map(|(state, count)| ([("state", *state)], count));
        encode_gauges(encoder, "kas_agents", help, states)?;
        let help = "agentk processes that are connected to any replica, by version";
        let versions = self.versions.iter().map(|(version, count)| ([("version", &**version)], *count));
        encode_gauges(encoder, "kas_agent_instances", help, versions)?;
        let help = "1 if the agent is connected to any replica, else 0";
        let up = self.up.iter().map(|(label, up)| ([("agent", &**label)], u64::from(*up)));
        encode_gauges(encoder, "kas_agent_up", help, up)
    }
}

/// Counts versions: the most frequent ones, and all others together. The versions are not trusted.
fn count_versions<'a>(versions: impl IntoIterator<Item = &'a str>) -> Vec<(String, u64)> {
    let (mut counts, mut other) = (HashMap::<&str, u64>::new(), 0);
    for version in versions {
        if is_version(version) { *counts.entry(version).or_default() += 1 } else { other += 1 }
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(version, count)| (std::cmp::Reverse(*count), *version));
    other += counts.iter().skip(MAX_VERSIONS).map(|(_, count)| count).sum::<u64>();
    counts.truncate(MAX_VERSIONS);
    let own = counts.into_iter().map(|(version, count)| (version.to_owned(), count));
    own.chain([(OTHER.to_owned(), other)]).collect()
}

/// Returns whether a text looks like a version: 1.2.3, 1.2.3-rc.1, 1.2.3+build.
fn is_version(text: &str) -> bool {
    let mut numbers = text.splitn(3, '.');
    let digits = |part: Option<&str>| {
        part.is_some_and(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let rest = |part: Option<&str>| {
        part.is_some_and(|part| {
            part.starts_with(|first: char| first.is_ascii_digit())
                && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".+-".contains(&byte))
        })
    };
    text.len() <= MAX_VERSION && digits(numbers.next()) && digits(numbers.next()) && rest(numbers.next())
}

impl AgentGauges {
    /// Registers the metrics.
    pub fn register(registry: &mut Registry) -> Self {
        let gauges = Self::default();
        let counts = gauges.clone();
        registry.collect(move |encoder| counts.0.lock().encode(encoder));
        gauges
    }

    /// Returns the number of agents that are connected to any replica.
    pub(super) fn connected(&self) -> u64 {
        self.0.lock().states[AgentConnection::Connected as usize]
    }

    /// Replaces the numbers.
    pub(crate) fn set(&self, counts: AgentCounts) {
        *self.0.lock() = counts;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(label: &str, connection: AgentConnection) -> AgentSample {
        AgentSample { label: label.to_owned(), connection }
    }

    fn render(counts: AgentCounts) -> Vec<String> {
        let mut registry = Registry::default();
        AgentGauges::register(&mut registry).set(counts);
        let text = telemetry::ExpositionFormat::OpenMetrics.render(&registry);
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    #[test]
    fn each_state_has_a_series() {
        let agents = vec![
            agent("a", AgentConnection::Connected),
            agent("b", AgentConnection::Away),
            agent("c", AgentConnection::Connected),
        ];
        let lines = render(AgentCounts::new(agents, ["0.1.0", "0.1.0", "0.2.0-rc.1"], 500));
        assert_eq!(
            lines,
            [
                r#"kas_agents{state="connected"} 2"#,
                r#"kas_agents{state="away"} 1"#,
                r#"kas_agents{state="never"} 0"#,
                r#"kas_agents{state="unknown"} 0"#,
                r#"kas_agent_instances{version="0.1.0"} 2"#,
                r#"kas_agent_instances{version="0.2.0-rc.1"} 1"#,
                r#"kas_agent_instances{version="other"} 0"#,
                r#"kas_agent_up{agent="a"} 1"#,
                r#"kas_agent_up{agent="b"} 0"#,
                r#"kas_agent_up{agent="c"} 1"#,
            ]
        );
    }

    #[test]
    fn most_frequent_versions_have_their_own_series() {
        let many: Vec<String> = (0..50).map(|number| format!("9.9.{number}")).collect();
        let versions = many.iter().map(String::as_str).chain(["0.1.0", "0.1.0"]);
        let counts = AgentCounts::new(Vec::new(), versions, 500);
        assert_eq!(counts.versions.len(), MAX_VERSIONS + 1);
        assert_eq!(counts.versions[0], ("0.1.0".to_owned(), 2));
        assert_eq!(counts.versions[MAX_VERSIONS], ("other".to_owned(), 41));
    }

    #[test]
    fn text_that_is_no_version_is_counted_as_other() {
        let long = format!("1.2.{}", "3".repeat(40));
        let hostile =
            ["", "1", "1.2", "1.2.", "1..3", "1.2.x", "v1.2.3", "1.2.3\"} 1", "1.2.3\n", "other", &long];
        let lines = render(AgentCounts::new(Vec::new(), hostile, 500));
        assert_eq!(lines[4..], [format!(r#"kas_agent_instances{{version="other"}} {}"#, hostile.len())]);
        for version in ["0.1.0", "10.20.30", "1.2.3-rc.1", "1.2.3+build-5"] {
            assert!(is_version(version), "{version}");
        }
    }

    #[test]
    fn agents_that_were_connected_take_the_limited_series() {
        let agents = || {
            vec![
                agent("a", AgentConnection::Never),
                agent("b", AgentConnection::Unknown),
                agent("c", AgentConnection::Away),
                agent("d", AgentConnection::Connected),
            ]
        };
        let labels = |limit| AgentCounts::new(agents(), [], limit).up.into_keys().collect::<Vec<_>>();
        assert_eq!(labels(2), ["c", "d"]);
        assert_eq!(labels(3), ["a", "c", "d"]);
        assert!(labels(0).is_empty());
    }

    #[test]
    fn agents_with_one_label_share_a_series() {
        let both = vec![agent("1/a", AgentConnection::Away), agent("1/a", AgentConnection::Connected)];
        let lines = render(AgentCounts::new(both, [], 500));
        assert_eq!(lines.last().unwrap(), r#"kas_agent_up{agent="1/a"} 1"#);
    }
}
