//! One agent as text.

use std::fmt::Write as _;

use super::tables::wide;
use kas_core::{
    agent_list::AgentList, agent_locations::AgentState, agents::RefusedTunnel,
    configuration::ConfigurationStatus,
};

/// Returns the configuration of each agent of the list, followed by its tunnels.
pub(super) fn details(listing: &AgentList) -> String {
    let mut text = String::new();
    for agent in &listing.agents {
        let state = match &agent.state {
            AgentState::Connected => "connected".to_owned(),
            AgentState::Elsewhere => "connected to other replicas only".to_owned(),
            AgentState::Away { since } => format!("away since {}", humantime::format_rfc3339_seconds(*since)),
            AgentState::Never => "has not connected".to_owned(),
            AgentState::Unknown => "unknown: Redis is unavailable".to_owned(),
        };
        line(&mut text, "agent", &format!("{} ({})", agent.name, agent.id));
        line(&mut text, "state", &state);
        if !agent.clusters.is_empty() {
            line(
                &mut text,
                "clusters",
                &format!("{}: the token is used in each of them", agent.clusters.join(", ")),
            );
        }
        if let Some(error) = &agent.dial_error {
            line(&mut text, "cannot dial", error);
        }
        if let Some(RefusedTunnel { message, time, .. }) = &agent.refused {
            line(&mut text, "refused", &format!("{message} ({})", humantime::format_rfc3339_seconds(*time)));
        }
        match &agent.configuration {
            None => line(&mut text, "configuration", "unknown: the agent has no tunnel to this replica"),
            Some(configuration) => write_configuration(&mut text, configuration),
        }
    }
    if listing.agents.iter().any(|agent| !agent.tunnels.is_empty() || !agent.elsewhere.is_empty()) {
        text.push('\n');
        text.push_str(&wide(listing));
    }
    text
}

fn write_configuration(text: &mut String, configuration: &ConfigurationStatus) {
    let ConfigurationStatus { version, read, warnings, error, error_since } = configuration;
    let time = |time: &Option<_>| {
        time.map_or_else(|| "never".to_owned(), |time| humantime::format_rfc3339_seconds(time).to_string())
    };
    let version = match (version, error) {
        (Some(version), _) => version,
        (None, Some(_)) => "none in force",
        (None, None) => "none",
    };
    line(text, "configuration", version);
    line(text, "last read", &time(read));
    if let Some(error) = error {
        line(text, "error", error);
        line(text, "error since", &time(error_since));
    }
    for warning in warnings {
        line(text, "warning", warning);
    }
}

fn line(text: &mut String, name: &str, value: &str) {
    // The value may come from a repository. Writing to a string does not fail.
    let _ = writeln!(
        text,
        "{:<15} {}",
        format!("{name}:"),
        value.escape_debug().to_string().replace("\\\"", "\"").replace("\\'", "'")
    );
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn agent_is_shown_with_the_error_of_its_configuration() {
        let text = include_str!("../../../../docs/agents.md");
        let example = text.split("```json\n").nth(1).unwrap().split("```").next().unwrap();
        let mut listing: AgentList = serde_json::from_str(example).unwrap();
        listing.agents.truncate(1);
        listing.agents[0].configuration = Some(ConfigurationStatus {
            version: Some("abc".to_owned()),
            read: Some(SystemTime::UNIX_EPOCH),
            warnings: vec!["flux has no effect".to_owned()],
            error: Some("config.yaml:1:1: \"a\"\nforged".to_owned()),
            error_since: Some(SystemTime::UNIX_EPOCH),
        });
        let shown = details(&listing);
        for expected in [
            "configuration:  abc\n",
            "last read:      1970-01-01T00:00:00Z\n",
            "error:          config.yaml:1:1: \"a\"\\nforged\n",
            "warning:        flux has no effect\n",
        ] {
            assert!(shown.contains(expected), "{expected} is not in\n{shown}");
        }
        listing.agents[0].configuration = None;
        assert!(details(&listing).contains("configuration:  unknown: the agent has no tunnel"));
    }
}
