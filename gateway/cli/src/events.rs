//! The command `kas events`: what has happened to agents and in their clusters.

mod stream;

use std::{
    net::SocketAddr,
    process::ExitCode,
    time::{Duration, SystemTime},
};

use clap::{
    ValueEnum,
    builder::{PossibleValuesParser, TypedValueParser},
};
use http::Method;
use proto::{
    ServiceName, agent_path,
    events::{EVENTS_PATH, Event, EventAgent, EventContent, EventKind, EventSubject},
    percent,
};
use serde::Deserialize;
use tokio::time::sleep;

use self::stream::{StreamPart, StreamParts};
use crate::{
    CliError,
    caller::{CallerOptions, Server},
    error::warn,
    parse_time, print,
    table::printable,
};

/// The pause before a stream that has ended is opened again.
const PAUSE: Duration = Duration::from_secs(2);
/// The events of one request.
const PAGE: usize = 500;

/// Show what has happened to agents and in their clusters
///
/// Agents that come and go, errors of configurations, syncs, drift, health, alerts, and the kill switch; kas keeps them for a week. With
/// --config, the events come from the kas that runs with this configuration, at its observability.listen.address, and are those of all
/// agents. Otherwise they are those of one agent, for which the caller needs the service events.
#[derive(Debug, clap::Args)]
pub struct EventsCommand {
    #[command(flatten)]
    caller: Option<CallerOptions>,
    /// The agent, by its name or id
    #[arg(long, value_name = "AGENT")]
    agent: Option<String>,
    /// Only events of this kind, such as sync or drift; may be repeated
    #[arg(long, value_name = "KIND", value_parser = kinds())]
    kind: Vec<EventKind>,
    /// Only events of this Git project, by its path; may be repeated
    #[arg(long, value_name = "PROJECT")]
    project: Vec<String>,
    /// Only events of this severity, or worse
    #[arg(long, value_enum, default_value_t)]
    severity: LeastSeverity,
    /// Only events since then: a duration such as 2h, or a time such as 2026-11-20T13:00:00Z [default: the newest events]
    #[arg(long, value_name = "TIME", value_parser = parse_time, allow_hyphen_values = true)]
    since: Option<SystemTime>,
    /// The number of the newest events, without --since
    #[arg(long, value_name = "NUMBER", default_value_t = 50, conflicts_with = "since", value_parser = clap::value_parser!(u16).range(1..=500))]
    limit: u16,
    /// Print later events as they come, until Ctrl-C
    #[arg(long, short)]
    follow: bool,
    /// The format
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Output {
    /// For people
    #[default]
    Text,
    /// For programs: one line of JSON for each event
    Json,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum LeastSeverity {
    #[default]
    Info,
    Warning,
    Error,
}

/// A list of events.
#[derive(Debug, Deserialize)]
struct EventList {
    missing: Option<String>,
    reset: bool,
    events: Vec<ListedEvent>,
    #[serde(rename = "continue")]
    next: String,
}

/// An event with its id.
#[derive(Debug, Deserialize)]
struct ListedEvent {
    #[serde(flatten)]
    event: Event,
}

/// The place of the events: a server, and the path of its answers.
struct Source<'a> {
    server: Server<'a>,
    path: String,
    /// The parameters that select events.
    filter: String,
}

impl EventsCommand {
    /// Runs the command. `operator` is the address of the observability listener of a kas whose operator this is.
    ///
    /// # Errors
    ///
    /// kas refuses the request or does not answer.
    pub fn run(self, operator: Option<SocketAddr>) -> Result<ExitCode, CliError> {
        let source = self.source(operator)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| CliError::unavailable(format!("no runtime: {error}")))?;
        runtime.block_on(async {
            let last = self.list(&source).await?;
            if self.follow { self.follow(&source, last).await } else { Ok(()) }
        })?;
        Ok(ExitCode::SUCCESS)
    }

    fn source(&self, operator: Option<SocketAddr>) -> Result<Source<'_>, CliError> {
        let mut filter: Vec<(&str, &str)> = self.kind.iter().map(|kind| ("kind", kind.as_str())).collect();
        filter.extend(self.project.iter().map(|project| ("project", &**project)));
        match self.severity {
            LeastSeverity::Info => {}
            LeastSeverity::Warning => filter.push(("severity", "warning")),
            LeastSeverity::Error => filter.push(("severity", "error")),
        }
        let (server, path) = match (operator, &self.caller, &self.agent) {
            (Some(address), _, agent) => {
                filter.extend(agent.iter().map(|agent| ("agent", &**agent)));
                (Server::Plain(address), "/events".to_owned())
            }
            (None, Some(caller), Some(agent)) => {
                (Server::Caller(caller), agent_path(agent, ServiceName::EVENTS, EVENTS_PATH))
            }
            (None, _, None) => {
                let what = "--agent is needed: a caller reads the events of one agent; --config shows those of all agents";
                return Err(CliError::usage(what));
            }
            (None, None, Some(_)) => {
                let what = "--server and --token-file are needed, or --config: the configuration file of kas";
                return Err(CliError::usage(what));
            }
        };
        let filter: String =
            filter.iter().map(|(key, value)| format!("&{key}={}", percent::encode(value))).collect();
        Ok(Source { server, path, filter })
    }

    /// Prints the events that have happened. Returns the position after them.
    async fn list(&self, source: &Source<'_>) -> Result<String, CliError> {
        let mut from = match self.since {
            Some(since) => format!("since={}&limit={PAGE}", humantime::format_rfc3339_seconds(since)),
            None => format!("limit={}", self.limit),
        };
        loop {
            let path = format!("{}?{from}{}", source.path, source.filter);
            let body = source.server.send(Method::GET, &path).await?;
            let invalid = |error| CliError::unavailable(format!("the response of kas is invalid: {error}"));
            let list: EventList = serde_json::from_slice(&body).map_err(invalid)?;
            let lines: serde_json::Value = serde_json::from_slice(&body).map_err(invalid)?;
            if let Some(missing) = &list.missing {
                warn(missing);
            }
            if list.reset {
                warn("older events are not kept any more");
            }
            for (event, json) in list.events.iter().zip(lines["events"].as_array().into_iter().flatten()) {
                self.show(&event.event, json)?;
            }
            if self.since.is_none() || list.events.len() < PAGE {
                return Ok(list.next);
            }
            from = format!("after={}&limit={PAGE}", percent::encode(&list.next));
        }
    }

    /// Prints events as they come. A stream that ends is opened again where it was.
    async fn follow(&self, source: &Source<'_>, mut last: String) -> Result<(), CliError> {
        let mut was_open = false;
        loop {
            let path = format!("{}?watch&after={}{}", source.path, percent::encode(&last), source.filter);
            match source.server.open(&path).await {
                Ok(body) => {
                    was_open = true;
                    let mut parts = StreamParts::new(body);
                    while let Some(StreamPart { id, kind, data }) = parts.next().await {
                        if kind == "reset" {
                            warn("some events are not kept any more");
                        } else if let (Ok(event), Ok(json)) =
                            (serde_json::from_str::<Event>(&data), serde_json::from_str(&data))
                        {
                            self.show(&event, &json)?;
                        }
                        last = id.unwrap_or(last);
                    }
                }
                Err(error) if !was_open || error.code == CliError::USAGE => return Err(error),
                Err(error) => warn(&error.message),
            }
            sleep(PAUSE).await;
        }
    }

    fn show(&self, event: &Event, json: &serde_json::Value) -> Result<(), CliError> {
        match self.output {
            Output::Json => print(&format!("{json}\n")),
            Output::Text => print(&line(event)),
        }
    }
}

/// Returns a line for people.
fn line(Event { time, agent, content }: &Event) -> String {
    let EventContent { kind, severity, subject, message, details: _ } = content;
    let agent = agent.as_ref().map_or("-", |EventAgent { name, .. }| name.as_str());
    let EventSubject { project, environment, namespace, kind: object, name } = subject;
    let object = if object.is_empty() { name.clone() } else { format!("{object}/{name}") };
    let parts = [project, environment, namespace, &object].map(|part| part.trim_matches('/'));
    let subject: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    let subject = if subject.is_empty() { String::new() } else { format!("{}: ", subject.join(" ")) };
    let time = humantime::format_rfc3339_seconds(*time);
    let severity = severity.as_str();
    printable(&format!("{time}  {severity:7}  {kind:19}  {agent:20}  {subject}{message}")) + "\n"
}

fn kinds() -> impl TypedValueParser<Value = EventKind> {
    PossibleValuesParser::new(EventKind::ALL.map(EventKind::as_str)).try_map(|text| text.parse::<EventKind>())
}

#[cfg(test)]
mod tests {
    use proto::{AgentId, events::Severity};

    use super::*;

    #[test]
    fn line_has_time_kind_agent_and_subject() {
        let subject = EventSubject {
            project: "shop/web".to_owned(),
            kind: "Deployment".to_owned(),
            name: "web".to_owned(),
            ..EventSubject::default()
        };
        let content =
            EventContent::new(EventKind::Drift, Severity::Warning, "changed\u{1b}[31m").with_subject(subject);
        let agent = EventAgent {
            id: AgentId(7),
            name: "production".parse().unwrap(),
            project_id: None,
            project_path: None,
        };
        let event = Event { time: SystemTime::UNIX_EPOCH, agent: Some(agent), content };
        assert_eq!(
            line(&event),
            "1970-01-01T00:00:00Z  warning  drift                production            shop/web Deployment/web: changed?[31m\n"
        );
        let content = EventContent::new(EventKind::KillSwitch, Severity::Info, "no rule");
        let event = Event { time: SystemTime::UNIX_EPOCH, agent: None, content };
        assert_eq!(
            line(&event),
            "1970-01-01T00:00:00Z  info     kill-switch          -                     no rule\n"
        );
    }
}
