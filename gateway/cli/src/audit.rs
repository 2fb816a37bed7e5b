//! The command `kas audit`: who has done what in a cluster.

mod text;

use std::{
    ops::ControlFlow,
    process::ExitCode,
    time::{Duration, SystemTime},
};

use clap::{
    ValueEnum,
    builder::{NonEmptyStringValueParser, TypedValueParser as _},
};
use proto::{
    ServiceName, agent_path,
    audit::{AuditLine, EVENTS_PATH, JoinedEvent, MAX_EVENTS},
    percent,
};
use tokio::time::sleep;

use crate::{CliError, caller::CallerOptions, parse_time, print, warn};

/// The pauses before a stream that has ended is continued: the first one, and the longest one without a new line.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// The time of the events that are shown without `--since` and `--follow`.
const DEFAULT_TIME: Duration = Duration::from_secs(3600);

/// Show who has done what in a cluster: the events of its audit log
///
/// Each line says who has sent a request, through what, as whom in the cluster, what it did, and with which result. The caller needs
/// `cluster_audit: true` in the identity file of kas. See docs/cluster-audit.md.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  export KAS_SERVER=https://kas.example.com:8154 KAS_TOKEN_FILE=token
  kas audit --agent production --verb delete --since 24h
  kas audit --agent production --user alice --follow
  kas audit --agent production --commit 714a629c --since 24h
  kas audit --agent production --resource pods/exec --output json

Exit codes:
  0   all events are printed
  64  the command line is invalid, or the caller may not read the log
  69  kas or the agent does not answer, or too many read the log now")]
pub struct AuditCommand {
    #[command(flatten)]
    caller: CallerOptions,
    /// The agent, by its name or id
    #[arg(long, value_name = "AGENT")]
    agent: String,
    /// Only requests of this person, program or CI job, as kas or the cluster knows it
    #[arg(long, value_name = "NAME", value_parser = not_empty())]
    user: Option<String>,
    /// Only this verb, such as delete
    #[arg(long, value_name = "VERB", value_parser = not_empty().map(|verb| verb.to_ascii_lowercase()))]
    verb: Option<String>,
    /// Only this resource in the plural, such as pods, deployments.apps or pods/exec
    #[arg(long, value_name = "RESOURCE", value_parser = not_empty())]
    resource: Option<String>,
    /// Only objects in this namespace
    #[arg(long, short, value_name = "NAMESPACE", value_parser = not_empty())]
    namespace: Option<String>,
    /// Only requests of jobs and manifests of this project, such as group/app
    #[arg(long, value_name = "PROJECT", value_parser = not_empty())]
    project: Option<String>,
    /// Only requests of jobs that deploy to this environment, by its name or its slug in GitLab
    #[arg(long, value_name = "ENVIRONMENT", value_parser = not_empty())]
    environment: Option<String>,
    /// Only requests of jobs and manifests of this commit: seven of its digits or more
    #[arg(long, value_name = "COMMIT", value_parser = parse_commit)]
    commit: Option<String>,
    /// Only events since this time, such as 2026-01-31T12:00:00Z, or in this time, such as 24h [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = parse_time, allow_hyphen_values = true)]
    since: Option<SystemTime>,
    /// Only events until this time
    #[arg(long, value_name = "TIME", value_parser = parse_time, allow_hyphen_values = true, conflicts_with = "follow")]
    until: Option<SystemTime>,
    /// Show later events as well, until Ctrl-C [default of --since: now]
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
    /// For programs: a JSON object in each line
    Json,
}

/// The way through the log.
#[derive(Debug, Default)]
struct Reading {
    /// kas has accepted a request.
    has_begun: bool,
    /// The position after the last line.
    position: Option<String>,
    /// The log has no further lines now.
    is_over: bool,
}

/// The next step after a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Done,
    Continue,
}

impl AuditCommand {
    /// Runs the command.
    ///
    /// # Errors
    ///
    /// kas or the agent refuses the request or does not answer.
    pub fn run(self) -> Result<ExitCode, CliError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| CliError::unavailable(format!("no runtime: {error}")))?;
        runtime.block_on(self.read())?;
        Ok(ExitCode::SUCCESS)
    }

    async fn read(&self) -> Result<(), CliError> {
        let mut reading = Reading::default();
        let since = self.since.or_else(|| (!self.follow).then(|| SystemTime::now() - DEFAULT_TIME));
        let mut pause = PAUSES.0;
        loop {
            let before = reading.position.clone();
            let path = self.path(reading.position.as_deref(), since);
            let read = self.read_once(&path, &mut reading).await;
            let has_read = reading.position != before;
            if self.next(read, has_read, &reading)? == Next::Done {
                return Ok(());
            }
            if self.follow {
                pause = if has_read { PAUSES.0 } else { (2 * pause).min(PAUSES.1) };
                sleep(pause).await;
            }
        }
    }

    /// Shows the lines of one response.
    async fn read_once(&self, path: &str, reading: &mut Reading) -> Result<(), CliError> {
        let lines = self.caller.lines(path).await?;
        if !reading.has_begun && self.output == Output::Text {
            print(text::HEADINGS)?;
        }
        reading.has_begun = true;
        lines.for_each(|line| self.show(line, reading)).await
    }

    /// Returns what follows a response. One that ends early, and one of a connection that was lost, are continued.
    fn next(&self, read: Result<(), CliError>, has_read: bool, reading: &Reading) -> Result<Next, CliError> {
        match read {
            Ok(()) if reading.is_over => Ok(Next::Done),
            Ok(()) if has_read || self.follow => Ok(Next::Continue),
            // It would not help.
            Ok(()) => Err(CliError::unavailable("the response of the agent ended too early")),
            // kas, the agent or the network may be back later. Other errors are those of the command, or of its caller.
            Err(error)
                if error.code == CliError::UNAVAILABLE && (has_read || self.follow && reading.has_begun) =>
            {
                warn(&format!("{}; trying again", error.message));
                Ok(Next::Continue)
            }
            Err(error) => Err(error),
        }
    }

    /// Shows a line of the response.
    fn show(&self, line: &[u8], reading: &mut Reading) -> Result<ControlFlow<()>, CliError> {
        let parsed: AuditLine<JoinedEvent> = serde_json::from_slice(line).map_err(|error| {
            CliError::unavailable(format!("the response of the agent is invalid: {error}"))
        })?;
        let is_end = matches!(parsed, AuditLine::End { .. });
        if self.output == Output::Json && !is_end {
            print(&format!("{}\n", text::json(&String::from_utf8_lossy(line))))?;
        }
        let is_text = self.output == Output::Text;
        match parsed {
            AuditLine::Event(event) => {
                if is_text {
                    print(&text::line(&event))?;
                }
                reading.position = Some(event.event.position);
            }
            AuditLine::Gap { position, lost_bytes } => {
                if is_text {
                    print(&text::gap(lost_bytes))?;
                }
                reading.position = Some(position);
            }
            AuditLine::End { position, has_more } => {
                reading.position = Some(position);
                reading.is_over = !has_more && !self.follow;
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Returns the path of the next request.
    fn path(&self, position: Option<&str>, since: Option<SystemTime>) -> String {
        let format = |time| humantime::format_rfc3339_micros(time).to_string();
        let limit = (!self.follow).then(|| MAX_EVENTS.to_string());
        let parameters = [
            ("position", position.map(str::to_owned)),
            ("since", since.map(format)),
            ("until", self.until.map(format)),
            ("user", self.user.clone()),
            ("verb", self.verb.clone()),
            ("resource", self.resource.clone()),
            ("namespace", self.namespace.clone()),
            ("project", self.project.clone()),
            ("environment", self.environment.clone()),
            ("commit", self.commit.clone()),
            ("limit", limit),
            ("follow", self.follow.then(|| "true".to_owned())),
        ];
        let pairs = parameters
            .iter()
            .filter_map(|(key, value)| Some(format!("{key}={}", percent::encode(value.as_deref()?))));
        let query = pairs.collect::<Vec<_>>().join("&");
        agent_path(&self.agent, ServiceName::AUDIT, &format!("{EVENTS_PATH}?{query}"))
    }
}

/// An empty value, such as that of an unset variable of a shell, would select everything.
fn not_empty() -> NonEmptyStringValueParser {
    NonEmptyStringValueParser::new()
}

/// Other texts would select nothing.
fn parse_commit(text: &str) -> Result<String, String> {
    let is_commit = (7..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_commit.then(|| text.to_owned()).ok_or_else(|| "write 7 to 64 hexadecimal digits".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        command: AuditCommand,
    }

    fn command(flags: &str) -> Result<AuditCommand, clap::Error> {
        let line = format!("kas --server https://kas --token-file token --agent edge-berlin {flags}");
        Cli::try_parse_from(line.split_whitespace()).map(|cli| cli.command)
    }

    fn path(flags: &str, position: Option<&str>) -> String {
        let command = command(flags).unwrap();
        command.path(position, command.since)
    }

    #[test]
    fn first_request_has_a_time_and_later_ones_a_position() {
        let since = "since=1970-01-01T00%3A00%3A01.000000Z";
        let flags = "--since 1970-01-01T00:00:01Z";
        assert_eq!(path(flags, None), format!("/agents/edge-berlin/audit/v1/events?{since}&limit=10000"));
        assert_eq!(
            path(flags, Some("0a.7")),
            format!("/agents/edge-berlin/audit/v1/events?position=0a.7&{since}&limit=10000")
        );
        assert_eq!(path("--follow", None), "/agents/edge-berlin/audit/v1/events?follow=true");
        assert_eq!(
            path("--user alice/b --verb delete --resource pods/exec -n shop -f", Some("0a.7")),
            "/agents/edge-berlin/audit/v1/events?position=0a.7&user=alice%2Fb&verb=delete&resource=pods%2Fexec&namespace=shop&follow=true"
        );
        assert_eq!(
            path("--project shop/web --environment live --commit 714a629 -f", None),
            "/agents/edge-berlin/audit/v1/events?project=shop%2Fweb&environment=live&commit=714a629&follow=true"
        );
        for (flags, expected) in [
            ("--since soon", "write a duration such as 2h"),
            ("--since -5m", "write a duration such as 2h"),
            ("--since 999999999h", "write a duration such as 2h"),
            ("--user=", "a value is required"),
            ("--commit v1.2", "7 to 64 hexadecimal digits"),
            ("--until 1h --follow", "cannot be used with"),
            ("--output yaml", "possible values: text, json"),
        ] {
            let error = command(flags).unwrap_err().to_string();
            assert!(error.contains(expected), "{flags}: {error}");
        }
    }

    #[test]
    fn follower_ends_only_when_it_is_refused() {
        let (once, follow) = (command("").unwrap(), command("--follow").unwrap());
        let unavailable = || Err(CliError::unavailable("503"));
        let refused = || Err(CliError::usage("403"));
        for (command, read, has_read, expected) in [
            (&once, unavailable(), false, None),
            (&once, unavailable(), true, Some(Next::Continue)),
            (&once, Ok(()), false, None),
            (&once, Ok(()), true, Some(Next::Continue)),
            (&once, refused(), true, None),
            (&follow, unavailable(), false, Some(Next::Continue)),
            (&follow, Ok(()), false, Some(Next::Continue)),
            (&follow, refused(), false, None),
            (&follow, Err(CliError::output("full")), true, None),
        ] {
            let (what, begun) =
                (format!("{read:?} {has_read}"), Reading { has_begun: true, ..Reading::default() });
            assert_eq!(command.next(read, has_read, &begun).ok(), expected, "{what}");
        }
        assert!(follow.next(unavailable(), false, &Reading::default()).is_err(), "the address may be wrong");
        let over = Reading { is_over: true, ..Reading::default() };
        assert_eq!(once.next(Ok(()), true, &over).unwrap(), Next::Done);
    }

    #[test]
    fn reading_continues_after_each_line_until_the_end() {
        let json = command("--output json").unwrap();
        let mut reading = Reading::default();
        let mut show = |line: &str| {
            let shown = json.show(line.as_bytes(), &mut reading);
            shown.map(|_| (reading.position.clone().unwrap_or_default(), reading.is_over))
        };
        let event = r#"{"type":"event","agent":"prod","through":"direct","position":"0a.7","time":"t","stage":"complete",
            "audit_id":"a","verb":"get","cluster_user":{"name":"jane"}}"#;
        assert_eq!(show(event).unwrap(), ("0a.7".to_owned(), false));
        assert_eq!(show(r#"{"type":"gap","position":"0a.9"}"#).unwrap(), ("0a.9".to_owned(), false));
        assert_eq!(
            show(r#"{"type":"end","position":"0b.1","has_more":true}"#).unwrap(),
            ("0b.1".to_owned(), false)
        );
        assert_eq!(
            show(r#"{"type":"end","position":"0b.1","has_more":false}"#).unwrap(),
            ("0b.1".to_owned(), true)
        );
        assert!(show("{}").unwrap_err().message.contains("is invalid"));
    }
}
