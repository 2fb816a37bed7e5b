//! The command `kas health`: whether objects do their work.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    process::ExitCode,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use futures_util::future::try_join_all;
use proto::graph::{HEALTH_PATH, HealthReport, HealthState};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::{Output, WATCH_PERIOD, block_on, get, parse, reasons, with_newline};
use crate::{
    CliError,
    caller::CallerOptions,
    print,
    retry::Retry,
    table::{age, printable},
};

/// The exit code for something that is not healthy.
const NOT_HEALTHY: u8 = 1;

/// The flags of `kas health` that need no configuration of kas.
#[derive(Debug, clap::Args)]
pub struct HealthCommand {
    #[command(flatten)]
    caller: CallerOptions,
    /// The agent, by its name or id
    #[arg(value_name = "AGENT", required_unless_present = "environment")]
    agent: Option<String>,
    /// Only this namespace; may be repeated
    #[arg(long, short, value_name = "NAMESPACE", conflicts_with = "environment")]
    namespace: Vec<String>,
    /// Only objects with these labels, as for kubectl --selector
    #[arg(long, short = 'l', value_name = "SELECTOR", conflicts_with = "environment")]
    label: Option<String>,
    /// The id of a group, which kas groups prints
    #[arg(long, value_name = "ID", conflicts_with = "environment")]
    group: Option<String>,
    /// Wait until everything is healthy, at most this long, also while kas or the agent restarts
    #[arg(long, value_name = "DURATION", value_parser = settings::duration::parse)]
    wait: Option<Duration>,
    /// Count objects as unhealthy only after this time
    #[arg(long, value_name = "DURATION", value_parser = settings::duration::parse)]
    degraded_after: Option<Duration>,
    /// The format
    #[arg(long, value_enum, default_value_t)]
    output: Output,
}

/// A place of an environment.
#[derive(Clone, Debug)]
pub struct HealthPlace {
    /// The name or the id of the agent.
    pub agent: String,
    /// The namespace.
    pub namespace: String,
    /// The labels that all objects have.
    pub labels: BTreeMap<String, String>,
}

/// A request to one agent.
struct Question {
    agent: String,
    parameters: Vec<(&'static str, String)>,
}

/// The health of an environment, for programs.
#[derive(Serialize)]
struct EnvironmentReport<'a> {
    health: HealthState,
    places: Vec<PlaceReport<'a>>,
}

#[derive(Serialize)]
struct PlaceReport<'a> {
    agent: &'a str,
    namespace: &'a str,
    #[serde(flatten)]
    report: &'a HealthReport,
}

impl HealthCommand {
    /// Returns the agent of the command line. Beside an environment, it selects places.
    pub fn agent(&self) -> Option<&str> {
        self.agent.as_deref()
    }

    /// Asks for the objects that the command line selects, or for those of all places of an environment. The exit code says whether
    /// everything is healthy.
    ///
    /// # Errors
    ///
    /// kas or an agent refuses the request or does not answer.
    pub fn run(self, places: &[HealthPlace]) -> Result<ExitCode, CliError> {
        let questions = self.questions(places);
        let ask = async || try_join_all(questions.iter().map(|question| self.ask(question))).await;
        let (text, code) = block_on(self.wait(places, ask))?;
        print(&text)?;
        Ok(ExitCode::from(code))
    }

    /// Asks once, or until everything is healthy or the time of `--wait` is over. Returns the text, and the exit code.
    async fn wait(
        &self,
        places: &[HealthPlace],
        ask: impl AsyncFn() -> Result<Vec<Bytes>, CliError>,
    ) -> Result<(String, u8), CliError> {
        let end = self.wait.map(|wait| Instant::now() + wait);
        let mut retry = Retry::until(end);
        loop {
            let bodies = retry.run(&ask).await?;
            let reports = bodies.iter().map(|body| parse(body)).collect::<Result<Vec<_>, _>>()?;
            let worst = reports.iter().map(|report: &HealthReport| report.health.health).max();
            let worst = worst.unwrap_or(HealthState::Unknown);
            let healthy = worst <= HealthState::Suspended;
            if healthy || end.is_none_or(|end| Instant::now() >= end) {
                let text = match (self.output, &*bodies) {
                    // As the agent has sent it, also if its version has more fields.
                    (Output::Json, [body]) if places.is_empty() => with_newline(body),
                    _ => self.show(worst, &reports, places),
                };
                return Ok((text, if healthy { 0 } else { NOT_HEALTHY }));
            }
            sleep(WATCH_PERIOD).await;
        }
    }

    fn questions(&self, places: &[HealthPlace]) -> Vec<Question> {
        let patience = self.degraded_after.map(|after| ("degraded_after", format!("{}s", after.as_secs())));
        if places.is_empty() {
            let namespaces = self.namespace.iter().map(|name| ("namespace", name.clone()));
            let label = self.label.clone().map(|label| ("label", label));
            let group = self.group.clone().map(|id| ("group", id));
            let parameters = namespaces.chain(label).chain(group).chain(patience).collect();
            return vec![Question { agent: self.agent.clone().unwrap_or_default(), parameters }];
        }
        let of_place = |place: &HealthPlace| {
            let labels: Vec<String> =
                place.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
            let label = (!labels.is_empty()).then(|| ("label", labels.join(",")));
            let namespace = [("namespace", place.namespace.clone())];
            let parameters = namespace.into_iter().chain(label).chain(patience.clone()).collect();
            Question { agent: place.agent.clone(), parameters }
        };
        places.iter().map(of_place).collect()
    }

    async fn ask(&self, question: &Question) -> Result<Bytes, CliError> {
        let body = get(&self.caller, &question.agent, HEALTH_PATH, &question.parameters).await;
        body.map_err(|CliError { code, message }| CliError {
            code,
            message: format!("agent {}: {message}", question.agent),
        })
    }

    fn show(&self, worst: HealthState, reports: &[HealthReport], places: &[HealthPlace]) -> String {
        let now = SystemTime::now();
        if places.is_empty() {
            return reports.iter().map(|report| show_health(report, now)).collect();
        }
        let each = places.iter().zip(reports);
        if self.output == Output::Json {
            let places = each.map(|(HealthPlace { agent, namespace, .. }, report)| PlaceReport {
                agent,
                namespace,
                report,
            });
            let report = EnvironmentReport { health: worst, places: places.collect() };
            return serde_json::to_string(&report).expect("it has keys that are text") + "\n";
        }
        let mut text = format!("Environment: {worst}\n");
        for (HealthPlace { agent, namespace, .. }, report) in each {
            let _ = write!(text, "\nAgent:    {agent}, namespace {namespace}\n{}", show_health(report, now));
        }
        text
    }
}

/// Shows a report. All texts come from the agent.
pub(super) fn show_health(report: &HealthReport, now: SystemTime) -> String {
    let HealthReport { health, warnings, partial } = report;
    let counts: Vec<String> =
        health.counts.iter().map(|(state, count)| format!("{count} {}", state.as_str())).collect();
    let mut text = format!("Health:   {}\nObjects:  {}\n", health.health.as_str(), counts.join(", "));
    let name = |namespace: &str, kind: &str, name: &str| match namespace {
        "" => format!("{kind}/{name}"),
        namespace => format!("{kind} {namespace}/{name}"),
    };
    for bad in &health.attention {
        let since = humantime::parse_rfc3339(&bad.since).ok();
        let since = since.map(|time| format!(" (for {})", age(now.duration_since(time).unwrap_or_default())));
        let line = format!(
            "{}: {}: {}{}",
            bad.health.as_str(),
            name(&bad.namespace, &bad.kind, &bad.name),
            bad.message,
            since.unwrap_or_default()
        );
        let _ = writeln!(text, "{}", printable(&line));
    }
    for warning in warnings {
        let object = name(&warning.namespace, &warning.kind, &warning.name);
        let line = format!("warning: {object}: {}: {} (×{})", warning.reason, warning.message, warning.count);
        let _ = writeln!(text, "{}", printable(&line));
    }
    text + &reasons(partial)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        command: HealthCommand,
        #[arg(long)]
        environment: Option<String>,
    }

    /// Runs a command whose requests have these results, the last one again and again. Returns the exit code and the number of requests.
    async fn run(flags: &str, results: &[Result<&'static str, u8>]) -> (u8, usize) {
        let line = format!("kas --server https://kas --token-file token production {flags}");
        let Cli { command, environment: None } = Cli::try_parse_from(line.split_whitespace()).unwrap() else {
            panic!("an environment")
        };
        let count = Cell::new(0);
        let ask = async || {
            let result = results[count.get().min(results.len() - 1)];
            count.set(count.get() + 1);
            let body = |health| vec![format!(r#"{{"health":"{health}","counts":{{}}}}"#).into()];
            result.map(body).map_err(|code| CliError { code, message: String::new() })
        };
        let code = command.wait(&[], ask).await.map_or_else(|error| error.code, |(_, code)| code);
        (code, count.get())
    }

    const AWAY: Result<&str, u8> = Err(CliError::UNAVAILABLE);

    #[tokio::test(start_paused = true)]
    async fn wait_outlives_a_restart_until_its_time_is_over() {
        let restarted = [Ok("progressing"), AWAY, AWAY, Ok("progressing"), Ok("healthy")];
        assert_eq!(run("--wait 1m", &restarted).await, (0, 5));
        assert_eq!(run("--wait 1m", &[AWAY, Ok("healthy")]).await, (0, 2), "kas is replaced just now");
        assert_eq!(run("--wait 1m", &[Ok("progressing"), AWAY]).await, (CliError::UNAVAILABLE, 31));
        assert_eq!(run("--wait 1m", &[Ok("progressing")]).await, (NOT_HEALTHY, 31));
        let refused = [Ok("progressing"), Err(CliError::USAGE), Ok("healthy")];
        assert_eq!(run("--wait 1m", &refused).await, (CliError::USAGE, 2));
        assert_eq!(run("", &[AWAY, Ok("healthy")]).await, (CliError::UNAVAILABLE, 1));
    }
}
