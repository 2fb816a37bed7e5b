//! The file with the rules of the kill switch: its format, its validation, and its replacement by `kas disable`.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    net::IpAddr,
    path::{Path, PathBuf},
    time::SystemTime,
};

use ipnet::IpNet;
use proto::{IdentityValue, ServiceName};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_saphyr::Spanned;
use settings::{ConfigError, Network};

use super::rule::{DisableRule, Selector};
use crate::{AgentSelector, InvalidAgentSelector};

/// The most rules of one file. Each request is compared with all of them.
const MAX_RULES: usize = 1000;
/// The longest reason, in characters.
const MAX_REASON: usize = 500;
/// The longest name of a caller or of a user, in characters.
const MAX_NAME: usize = 1000;

/// The first lines of a file that a command has written.
const HEADER: &str = "# Rules of the kill switch of kas, written by `kas disable` and `kas enable`.\n";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RulesFile {
    rules: Option<Vec<Spanned<RuleEntry>>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleEntry {
    all: Option<Spanned<bool>>,
    service: Option<Spanned<ServiceName>>,
    agent: Option<Spanned<String>>,
    caller: Option<Spanned<String>>,
    user: Option<Spanned<String>>,
    address: Option<Spanned<String>>,
    reason: Option<Spanned<String>>,
    until: Option<Spanned<String>>,
}

/// A rule as a command writes it.
#[derive(Debug, Serialize)]
struct WrittenRule<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    all: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    service: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    caller: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<String>,
}

#[derive(Debug, Serialize)]
struct WrittenFile<'a> {
    rules: Vec<WrittenRule<'a>>,
}

/// Reads the rules of a file.
///
/// # Errors
///
/// The file cannot be read, is empty, or has an invalid rule.
pub fn read(path: &Path) -> Result<Vec<DisableRule>, ConfigError> {
    parse(path, &files::read_config(path)?)
}

/// Parses the text of a file; `path` is for errors.
///
/// # Errors
///
/// The text is empty, or has an invalid rule.
pub fn parse(path: &Path, text: &str) -> Result<Vec<DisableRule>, ConfigError> {
    // An editor or `>` may leave the file empty for a moment. That must not lift any rule.
    let empty = "there are no rules: to lift all rules, write rules: []";
    let file: Option<RulesFile> = settings::parse(path, text)?;
    let rules = file.and_then(|file| file.rules).ok_or_else(|| ConfigError::whole(path, empty))?;
    if let Some(one_more) = rules.get(MAX_RULES) {
        let what = format!("the file has more than {MAX_RULES} rules");
        return Err(ConfigError::new(path, one_more.referenced, "rules", what));
    }
    let rules = rules.into_iter().enumerate();
    rules.map(|(index, entry)| rule(entry, &Position { path, key: format!("rules[{index}]") })).collect()
}

fn rule(entry: Spanned<RuleEntry>, at: &Position<'_>) -> Result<DisableRule, ConfigError> {
    let here = entry.referenced;
    let RuleEntry { all, service, agent, caller, user, address, reason, until } = entry.value;
    if let Some(all) = all.as_ref().filter(|all| !all.value) {
        return Err(at.error("all", all, "the only value is true: remove this key or the rule"));
    }
    let selector = Selector {
        service: service.map(|service| service.value),
        agent: agent.map(|agent| at.parse("agent", agent, parse_agent)).transpose()?,
        caller: caller.map(|caller| at.parse("caller", caller, parse_caller)).transpose()?,
        user: user.map(|user| at.parse("user", user, parse_user)).transpose()?,
        address: address.map(|address| at.parse("address", address, parse_address)).transpose()?,
    };
    match (all, selector == Selector::default()) {
        (None, true) => {
            let what = "a rule needs all: true, or some of service, agent, caller, user and address";
            return Err(ConfigError::new(at.path, here, at.key.clone(), what));
        }
        (Some(all), false) => {
            let what = "all: true disables everything: remove it, or the other keys of the rule";
            return Err(at.error("all", &all, what));
        }
        _ => {}
    }
    let reason = reason.ok_or_else(|| {
        let what = "a rule needs a reason, which callers receive";
        ConfigError::new(at.path, here, format!("{}.reason", at.key), what)
    })?;
    let reason = at.parse("reason", reason, parse_reason)?;
    let until = until.map(|until| at.parse("until", until, parse_until)).transpose()?;
    Ok(DisableRule { selector, reason, until })
}

/// Parses the name of an agent.
pub fn parse_agent(text: &str) -> Result<AgentSelector, String> {
    text.parse().map_err(|error: InvalidAgentSelector| error.to_string())
}

/// Parses the name of a caller.
pub fn parse_caller(text: &str) -> Result<String, String> {
    parse_name("caller", text)
}

/// Parses the name of the user of an OIDC token.
pub fn parse_user(text: &str) -> Result<String, String> {
    parse_name("user", text)
}

fn parse_name(of: &str, text: &str) -> Result<String, String> {
    let valid = IdentityValue::new(text).is_ok() && text.chars().count() <= MAX_NAME;
    let what = || {
        format!(
            "the name of a {of} has 1 to {MAX_NAME} characters, without control characters and blanks around it"
        )
    };
    valid.then(|| text.to_owned()).ok_or_else(what)
}

/// Parses an address or a network.
pub fn parse_address(text: &str) -> Result<IpNet, String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(address.to_canonical().into());
    }
    text.parse::<Network>().map(IpNet::from).map_err(|error| error.to_string())
}

/// Parses a reason.
pub fn parse_reason(text: &str) -> Result<String, String> {
    let text = text.trim();
    let valid = !text.is_empty() && text.chars().count() <= MAX_REASON && !text.contains(char::is_control);
    let what = || format!("a reason is one line of 1 to {MAX_REASON} characters");
    valid.then(|| text.to_owned()).ok_or_else(what)
}

/// Parses the end of a rule.
pub fn parse_until(text: &str) -> Result<SystemTime, String> {
    let what = |_| format!("{text:?} is not a time in UTC: write it like 2026-11-22T15:00:00Z (RFC 3339)");
    humantime::parse_rfc3339(text).map_err(what)
}

/// Returns the text of a file with these rules.
pub(crate) fn render(rules: &[DisableRule]) -> String {
    format!("{HEADER}{}", serde_saphyr::to_string(&written(rules)).expect("texts and lists are serializable"))
}

/// Returns the content of a file with these rules as JSON.
pub fn to_json(rules: &[DisableRule]) -> Box<RawValue> {
    to_raw_value(&written(rules)).expect("texts and lists are serializable")
}

fn written(rules: &[DisableRule]) -> WrittenFile<'_> {
    let rules = rules.iter().map(|DisableRule { selector, reason, until }| WrittenRule {
        all: (*selector == Selector::default()).then_some(true),
        service: selector.service.as_ref().map(ServiceName::as_str),
        agent: selector.agent.as_ref().map(ToString::to_string),
        caller: selector.caller.as_deref(),
        user: selector.user.as_deref(),
        address: selector.address.map(|network| network.to_string()),
        reason,
        until: until.map(|until| humantime::format_rfc3339_seconds(until).to_string()),
    });
    WrittenFile { rules: rules.collect() }
}

/// Replaces a file by one with these rules, so that a reader sees the old or the new version and no part of one.
///
/// # Errors
///
/// The new version cannot be written, or not be renamed.
pub fn replace(path: &Path, rules: &[DisableRule]) -> io::Result<()> {
    replace_text(path, &render(rules))
}

/// Replaces a file by one with this text in the same way.
pub(super) fn replace_text(path: &Path, text: &str) -> io::Result<()> {
    // A symbolic link stays, and its target is replaced.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let mut name = path.file_name().map(ToOwned::to_owned).unwrap_or_default();
    name.push(format!(".{}.new", std::process::id()));
    let next = path.with_file_name(name);
    let written = write_new(&next, &path, text).and_then(|()| fs::rename(&next, &path));
    if written.is_err() {
        // The error of the write is reported.
        let _ = fs::remove_file(&next);
    }
    written
}

fn write_new(next: &PathBuf, path: &Path, text: &str) -> io::Result<()> {
    let mut file = File::create(next)?;
    if let Ok(metadata) = fs::metadata(path) {
        file.set_permissions(metadata.permissions())?;
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// The position in the file, for errors.
struct Position<'a> {
    path: &'a Path,
    key: String,
}

impl Position<'_> {
    fn error<T>(&self, key: &str, value: &Spanned<T>, what: impl Into<String>) -> ConfigError {
        ConfigError::new(self.path, value.referenced, format!("{}.{key}", self.key), what)
    }

    fn parse<T>(
        &self,
        key: &str,
        value: Spanned<String>,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, ConfigError> {
        parse(&value.value).map_err(|what| self.error(key, &value, what))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn parsed(text: &str) -> Result<Vec<DisableRule>, String> {
        parse(Path::new("d.yaml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn example_has_a_rule_of_each_kind() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/disabled.example.yaml"));
        let text = fs::read_to_string(path).unwrap();
        assert_eq!(parse(path, &text).unwrap(), [], "the rules of the example are comments");
        let uncommented: String = text
            .lines()
            .filter(|line| !line.starts_with("rules: []"))
            .map(|line| line.strip_prefix("#:").unwrap_or(line))
            .map(|line| format!("{line}\n"))
            .collect();
        let rules = parse(path, &uncommented).unwrap();
        let fields =
            |field| rules.iter().filter(move |rule| rule.selector.fields().any(|name| name == field));
        for field in ["all", "service", "agent", "caller", "user", "address"] {
            assert!(fields(field).count() > 0, "{field}");
        }
        assert!(rules.iter().any(|rule| rule.until.is_some()));
    }

    #[test]
    fn keys_of_a_rule_are_combined() {
        let rules = parsed(
            "rules:\n- {agent: 7, service: kubernetes, reason: ' drill ', until: 1970-01-01T00:00:09Z}\n\
             - {address: '::ffff:192.0.2.1', reason: a}\n- {address: 10.0.0.0/8, caller: ci, reason: b}\n",
        );
        let shown: Vec<String> = rules.unwrap().iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            [
                "agent 7, service kubernetes until 1970-01-01T00:00:09Z: drill",
                "address 192.0.2.1: a",
                "caller ci, address 10.0.0.0/8: b"
            ]
        );
    }

    #[test]
    fn invalid_file_is_refused_with_its_position() {
        let long = "x".repeat(MAX_REASON + 1);
        for (text, expected) in [
            ("", "d.yaml: there are no rules: to lift all rules, write rules: []"),
            ("# all\n", "d.yaml: there are no rules"),
            ("{}", "d.yaml: there are no rules"),
            ("rules:\n", "d.yaml: there are no rules"),
            ("rule: []", "d.yaml:1:1: rule: unknown field `rule`"),
            ("rules: [{reason: a}]", "d.yaml:1:9: rules[0]: a rule needs all: true, or some of"),
            ("rules: [{all: false, reason: a}]", "d.yaml:1:15: rules[0].all: the only value is true"),
            ("rules: [{all: true, agent: a, reason: a}]", "rules[0].all: all: true disables everything"),
            ("rules:\n- {all: true}", "d.yaml:2:3: rules[0].reason: a rule needs a reason"),
            ("rules: [{all: true, reason: ''}]", "rules[0].reason: a reason is one line"),
            ("rules: [{all: true, reason: \"a\\nb\"}]", "rules[0].reason: a reason is one line"),
            (&format!("rules: [{{all: true, reason: {long}}}]"), "rules[0].reason: a reason is one line"),
            ("rules: [{agent: PROD, reason: a}]", "rules[0].agent: \"PROD\" names no agent"),
            ("rules: [{agent: '07', reason: a}]", "rules[0].agent: \"07\" names no agent"),
            ("rules: [{service: Kubernetes, reason: a}]", "rules[0].service: "),
            ("rules: [{caller: '', reason: a}]", "rules[0].caller: the name of a caller has 1 to"),
            ("rules: [{user: '', reason: a}]", "rules[0].user: the name of a user has 1 to"),
            ("rules: [{user: 'bob ', reason: a}]", "rules[0].user: the name of a user has 1 to"),
            ("rules: [{address: lan, reason: a}]", "rules[0].address: \"lan\" is not a network"),
            ("rules: [{address: 10.0.0.1/8, reason: a}]", "write 10.0.0.0/8"),
            ("rules: [{all: true, reason: a, until: soon}]", "rules[0].until: \"soon\" is not a time in UTC"),
            ("rules: [{all: true, reason: a, until: '2026-11-22T15:00:00+01:00'}]", "rules[0].until: "),
            ("rules: [{all: true, why: a}]", "unknown field `why`"),
            ("rules: [all]", "rules[0]"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.contains(expected), "{text}\n gave {error}");
        }
        let many = format!("rules: [{}]", "{all: true, reason: a},".repeat(MAX_RULES + 1));
        assert!(parsed(&many).unwrap_err().contains("more than 1000 rules"));
    }

    #[test]
    fn written_file_is_read_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("disabled.yaml");
        let until = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(9));
        let rule = |selector, reason: &str, until| DisableRule { selector, reason: reason.to_owned(), until };
        let odd = Selector {
            caller: Some("null".to_owned()),
            user: Some("dex:alice@example.com".to_owned()),
            agent: Some("7".parse().unwrap()),
            address: Some("192.0.2.1/32".parse().unwrap()),
            ..Selector::default()
        };
        let rules = [
            rule(Selector::default(), "'quotes': \"and\" # no comment, {no map}", until),
            rule(odd, "- no list", None),
            rule(Selector { caller: Some("true".to_owned()), ..Selector::default() }, "~", None),
        ];
        for rules in [&rules[..], &[]] {
            replace(&path, rules).unwrap();
            assert_eq!(read(&path).unwrap(), rules, "{}", fs::read_to_string(&path).unwrap());
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "no other file is left");
    }

    #[cfg(unix)]
    #[test]
    fn replaced_file_keeps_its_permissions_and_its_symbolic_link() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};

        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("rules"), directory.path().join("link"));
        fs::write(&path, "rules: []").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        symlink(&path, &link).unwrap();
        replace(&link, &[]).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with(HEADER), "{text}");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
    }
}
