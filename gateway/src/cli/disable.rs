//! The commands `kas disable` and `kas enable`, which write the rules of the kill switch.

mod fleet;

use std::{
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use access::{
    AgentSelector,
    kill_switch::{DisableRule, Selector, file},
};
use clap::ValueHint;
use ipnet::IpNet;
use proto::ServiceName;

use crate::config::Config;
use cli::{CliError, CommandResult, print, warn};

/// Disable requests: of everything, a service, an agent or a caller
///
/// A running kas reads the file within 3 s. Callers then get 503 with the reason, and their watches, logs and exec end. Tunnels of
/// agents stay open. Several selectors in one command disable the requests that match all of them. A rule with the same
/// selectors is replaced. Comments in the file are lost.
///
/// With --fleet, the rules are those of all replicas, in Redis: they have effect within 1 s, and need no file. The replicas keep
/// them while Redis is away.
#[derive(Debug, clap::Args)]
#[command(after_help = DISABLE_EXAMPLES)]
pub(super) struct Disable {
    #[command(flatten)]
    rules: RulesLocation,
    #[command(flatten)]
    selector: SelectorOptions,
    /// The reason, which callers receive
    #[arg(long, value_name = "TEXT", value_parser = file::parse_reason, required_unless_present = "list")]
    reason: Option<String>,
    /// The end of the rule, in UTC (RFC 3339); without it, the rule lasts until `kas enable`
    #[arg(long, value_name = "TIME", value_parser = file::parse_until, conflicts_with = "lasting")]
    until: Option<SystemTime>,
    /// The time after which the rule ends, like 30m or 2h
    #[arg(long = "for", value_name = "DURATION", value_parser = settings::duration::parse)]
    lasting: Option<Duration>,
    /// Print the rules, and change nothing
    #[arg(long, conflicts_with_all = ["selector", "reason", "until", "lasting"])]
    list: bool,
}

/// Enable requests again that `kas disable` has disabled
///
/// Removes the rule with exactly these selectors. A running kas reads the file within 3 s, and the rules of --fleet within 1 s.
#[derive(Debug, clap::Args)]
#[command(after_help = ENABLE_EXAMPLES)]
pub(super) struct Enable {
    #[command(flatten)]
    rules: RulesLocation,
    #[command(flatten)]
    selector: SelectorOptions,
    /// Remove every rule
    #[arg(long, conflicts_with = "selector")]
    every_rule: bool,
}

const DISABLE_EXAMPLES: &str = "\
Examples:
  kas disable --file disabled.yaml --agent production --reason \"incident 4711\"
  kas disable --config kas.yaml --all --reason maintenance --for 1h
  kas disable --config kas.yaml --fleet --agent production --reason incident
  kas disable --file disabled.yaml --caller ci --service kubernetes \\
    --reason \"a job deletes what it should not\"
  kas disable --file disabled.yaml --list

Exit codes:
  0   written, or listed
  64  the command line or the file is invalid
  69  Redis does not answer, or its rules were changed at the same time
  73  the file cannot be written";

const ENABLE_EXAMPLES: &str = "\
Examples:
  kas enable --file disabled.yaml --agent production
  kas enable --config kas.yaml --every-rule
  kas enable --config kas.yaml --fleet --agent production

Exit codes:
  0   written
  64  the command line or the file is invalid, or there is no such rule
  69  Redis does not answer, or its rules were changed at the same time
  73  the file cannot be written";

/// The place of the rules: a file, or Redis.
#[derive(Debug, clap::Args)]
#[group(required = true, multiple = true)]
struct RulesLocation {
    /// The file with the rules
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: Option<PathBuf>,
    /// The configuration file of kas, whose disabled.file is used without --file
    #[arg(
        long,
        visible_alias = "configuration-file",
        env = "KAS_CONFIG",
        value_name = "FILE",
        value_hint = ValueHint::FilePath
    )]
    config: Option<PathBuf>,
    /// The rules of all replicas, in Redis, in place of a file
    #[arg(long, requires = "config", conflicts_with = "file")]
    fleet: bool,
}

#[derive(Debug, clap::Args)]
#[group(id = "selector", multiple = true)]
struct SelectorOptions {
    /// Everything
    #[arg(long, conflicts_with_all = ["service", "agent", "caller", "user", "address"])]
    all: bool,
    /// A service: kubernetes, or prometheus with its named servers
    #[arg(long, value_name = "NAME")]
    service: Option<ServiceName>,
    /// An agent: its id, its name in the identity file, or project/path:name of an agent of GitLab
    #[arg(long, value_name = "AGENT", value_parser = file::parse_agent)]
    agent: Option<AgentSelector>,
    /// A caller, by its name
    #[arg(long, value_name = "NAME", value_parser = file::parse_caller)]
    caller: Option<String>,
    /// A user of OIDC tokens, by its name with the prefix of the issuer
    #[arg(long, value_name = "NAME", value_parser = file::parse_user)]
    user: Option<String>,
    /// An address of callers, or a network like 192.0.2.0/24
    #[arg(long, value_name = "ADDRESS", value_parser = file::parse_address)]
    address: Option<IpNet>,
}

impl Disable {
    /// Adds the rule to the file or to those of the fleet, or lists the rules.
    pub(super) fn run(self) -> CommandResult {
        if self.list {
            return list(&match self.rules.fleet()? {
                Some(config) => fleet::read(config)?,
                None => file::read(&self.rules.path()?)?,
            });
        }
        let (Some(selector), Some(reason)) = (self.selector.selector(), self.reason) else {
            return Err(CliError::usage(
                "name what to disable: --all, or some of --service, --agent, --caller, --user and --address",
            ));
        };
        if let Some(service) = selector.service.as_ref().filter(|service| !is_known(service)) {
            warn(&format!(
                "kas has no service {service}: the rule concerns agents with a service of this name; those of kas are {}",
                ServiceName::OF_CALLERS.join(", ")
            ));
        }
        let until = self.until.or_else(|| SystemTime::now().checked_add(self.lasting?));
        let rule = DisableRule { selector, reason, until };
        let done = format!("disabled {rule}\n");
        let change = |mut rules: Vec<DisableRule>| {
            rules.retain(|other| other.selector != rule.selector);
            rules.push(rule);
            rules
        };
        if let Some(config) = self.rules.fleet()? {
            let replicas = fleet::edit(config, |rules| rules.map(change).map_err(invalid_record))?;
            return print(&format!("{done}{}", at_replicas(replicas)));
        }
        let path = self.rules.path()?;
        let rules = if path.exists() { file::read(&path)? } else { Vec::new() };
        write(&path, &change(rules))?;
        print(&done)
    }
}

impl Enable {
    /// Removes the rule from the file, or from those of the fleet.
    pub(super) fn run(self) -> CommandResult {
        let selector = self.selector.selector();
        if selector.is_none() && !self.every_rule {
            let what = "name the rule with the options of `kas disable`, or use --every-rule";
            return Err(CliError::usage(what));
        }
        if let Some(config) = self.rules.fleet()? {
            let mut removed = Vec::new();
            let replicas = fleet::edit(config, |rules| {
                // All rules are lifted, those of an invalid record, too.
                let rules = if selector.is_none() {
                    rules.unwrap_or_default()
                } else {
                    rules.map_err(invalid_record)?
                };
                let left;
                (removed, left) = split("the fleet", rules, selector.as_ref())?;
                Ok(left)
            })?;
            report(&removed)?;
            return print(&at_replicas(replicas));
        }
        let path = self.rules.path()?;
        let (removed, left) = split(&path.display().to_string(), file::read(&path)?, selector.as_ref())?;
        write(&path, &left)?;
        report(&removed)
    }
}

fn is_known(service: &ServiceName) -> bool {
    let name = service.as_str();
    let kind = name.split_once('.').map_or(name, |(kind, _)| kind);
    service.is_internal() || name == ServiceName::EVENTS || ServiceName::OF_CALLERS.contains(&kind)
}

/// Separates the rules with exactly this selector, or all without one, from the others. `place` is for errors.
fn split(
    place: &str,
    rules: Vec<DisableRule>,
    selector: Option<&Selector>,
) -> Result<(Vec<DisableRule>, Vec<DisableRule>), CliError> {
    let (removed, left): (Vec<_>, Vec<_>) =
        rules.into_iter().partition(|rule| selector.is_none_or(|selector| rule.selector == *selector));
    if let Some(selector) = selector.filter(|_| removed.is_empty()) {
        let rules: Vec<_> = left.iter().map(|rule| rule.selector.to_string()).collect();
        let rules = if rules.is_empty() { "none".to_owned() } else { rules.join("; ") };
        return Err(CliError::usage(format!("{place} has no rule for exactly {selector}; it has: {rules}")));
    }
    Ok((removed, left))
}

fn report(removed: &[DisableRule]) -> CommandResult {
    removed.iter().try_for_each(|rule| print(&format!("enabled {}\n", rule.selector)))
}

fn at_replicas(replicas: usize) -> String {
    format!("{replicas} live replicas use this Redis\n")
}

fn invalid_record(error: String) -> CliError {
    CliError::usage(format!("{error}: `kas enable --fleet --every-rule` replaces it"))
}

impl RulesLocation {
    /// Returns the configuration of the fleet if the rules are those of the fleet.
    fn fleet(&self) -> Result<Option<&Path>, CliError> {
        let missing = || CliError::usage("name the configuration with --config: it has the address of Redis");
        self.fleet.then(|| self.config.as_deref().ok_or_else(missing)).transpose()
    }

    fn path(&self) -> Result<PathBuf, CliError> {
        if let Some(file) = &self.file {
            return Ok(file.clone());
        }
        let Some(config) = &self.config else {
            return Err(CliError::usage("name the file with --file"));
        };
        let file = Config::read(config)?.disabled.file.map(|file| file.value);
        file.ok_or_else(|| {
            CliError::usage(format!(
                "{} has no disabled.file: add that key and restart kas",
                config.display()
            ))
        })
    }
}

impl SelectorOptions {
    /// Returns the selector, or `None` without any option.
    fn selector(&self) -> Option<Selector> {
        let selector = Selector {
            service: self.service.clone(),
            agent: self.agent.clone(),
            caller: self.caller.clone(),
            user: self.user.clone(),
            address: self.address,
        };
        (self.all || selector != Selector::default()).then_some(selector)
    }
}

fn list(rules: &[DisableRule]) -> CommandResult {
    match rules {
        [] => print("nothing is disabled\n"),
        rules => rules.iter().try_for_each(|rule| print(&format!("{rule}\n"))),
    }
}

fn write(path: &Path, rules: &[DisableRule]) -> CommandResult {
    let failed = |error| CliError::output(format!("{}: {error}", path.display()));
    file::replace(path, rules).map_err(failed)
}
