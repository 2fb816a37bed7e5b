//! Files that GitLab's parser accepts: of several documents, the first one applies, and of several keys with one name, the last
//! one. A section that GitLab does not have, such as `scope`, may not be lost like this.

use std::path::Path;

use serde_json::Value;
use settings::{ConfigError, KeyLocations};

/// The sections of GitLab's agent.
const SECTIONS: [&str; 8] = [
    "ci_access",
    "config",
    "container_scanning",
    "flux",
    "gitops",
    "observability",
    "remote_development",
    "user_access",
];

/// The text of a file.
pub(super) struct GitLabSyntax<'a> {
    /// The first document.
    pub(super) text: &'a str,
    /// The number of its lines, and the text after them.
    rest: Option<(u64, &'a str)>,
}

impl<'a> GitLabSyntax<'a> {
    /// Splits a text after its first document.
    pub(super) fn new(text: &'a str) -> Self {
        let (mut has_begun, mut offset) = (false, 0);
        for (number, line) in (1..).zip(text.split_inclusive('\n')) {
            let content = line.trim_end();
            // YAML allows no other line to begin like this.
            let is_marker = |marker: &str| {
                content
                    .strip_prefix(marker)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t']))
            };
            if is_marker("...") || is_marker("---") && has_begun {
                let rest = &text[offset..];
                let is_empty = rest.lines().all(|line| {
                    let line = line.trim();
                    line.is_empty() || line.starts_with('#') || ["---", "..."].contains(&line)
                });
                return Self { text: &text[..offset], rest: (!is_empty).then_some((number, rest)) };
            }
            has_begun |= !content.is_empty() && !content.starts_with(['#', '%']);
            offset += line.len();
        }
        Self { text, rest: None }
    }

    /// Returns a sentence for each part of the file that does not apply.
    ///
    /// # Errors
    ///
    /// A section that GitLab does not have is one of them.
    pub(super) fn check(&self, file: &Path, keys: &KeyLocations) -> Result<Vec<String>, ConfigError> {
        let mut dropped = Vec::new();
        let mut errors = Vec::new();
        for (key, place) in keys.repeated() {
            if is_of_gitlab(key) {
                dropped.push(format!("{key} is set twice: the last one applies (line {})", place.0))
            } else {
                errors.push(ConfigError::at(
                    file,
                    *place,
                    format!("the key {key} is set twice: remove one of them"),
                ));
            }
        }
        if let Some((line, rest)) = self.rest {
            let lost = rest.lines().filter_map(|line| line.split_once(':')).map(|(key, _)| key.trim_end());
            let lost = lost.filter(|key| key.starts_with(|c: char| c.is_ascii_lowercase()));
            match lost.into_iter().find(|key| !is_of_gitlab(key)) {
                Some(key) => errors.push(ConfigError::at(
                    file,
                    (line, 1),
                    format!("only the first document of a file applies, and {key} is in another one: move it there"),
                )),
                None => dropped.push(format!("the file has several documents: only the first one applies, which ends at line {line}")),
            }
        }
        ConfigError::several(errors).map_or(Ok(dropped), Err)
    }
}

fn is_of_gitlab(key: &str) -> bool {
    SECTIONS.contains(&key.split(['.', '[']).next().unwrap_or_default())
}

/// Removes the keys of a value that the text of its document does not have.
pub(super) fn remove_defaults(value: &mut Value, text: &str) {
    let written: Option<Value> =
        settings::parse_with_options(Path::new(""), text, super::parser_options()).ok();
    if let Some(written) = written {
        keep_written(value, &written);
    }
}

fn keep_written(value: &mut Value, written: &Value) {
    match (value, written) {
        (Value::Object(value), Value::Object(written)) => {
            value.retain(|key, _| written.get(key).is_some_and(|written| !written.is_null()));
            for (key, value) in value {
                keep_written(value, &written[key]);
            }
        }
        (Value::Array(value), Value::Array(written)) => {
            for (value, written) in value.iter_mut().zip(written) {
                keep_written(value, written);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use crate::agent_configuration::{AgentConfiguration, LogLevel};

    fn parse(text: &str) -> Result<AgentConfiguration, String> {
        AgentConfiguration::parse(Path::new("config.yaml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn last_one_of_several_keys_of_gitlab_applies_with_a_warning() {
        let text = "ci_access: {projects: [{id: a/b}]}\nobservability: {logging: {level: info, level: 1}}\nci_access: {projects: \
                    [{id: c/d}]}\n";
        let parsed = parse(text).unwrap();
        assert_eq!(parsed.ci_access.as_ref().unwrap().projects[0].id, "c/d");
        assert_eq!(parsed.log_level(), Some(LogLevel::Debug));
        assert_eq!(
            parsed.warnings(),
            [
                "observability.logging.level is set twice: the last one applies (line 2)",
                "ci_access is set twice: the last one applies (line 3)"
            ]
        );
    }

    #[test]
    fn first_document_applies_with_a_warning() {
        for first in ["", "---\n", "# the agent\n%YAML 1.2\n---\n"] {
            let text = format!(
                "{first}ci_access: {{projects: [{{id: a/b}}]}}\n---\nci_access: {{}}\ncontainer_scanning:\n  of: [\n"
            );
            let parsed = parse(&text).unwrap();
            assert_eq!(parsed.ci_access.as_ref().unwrap().projects.len(), 1, "{text}");
            assert!(parsed.warnings()[0].starts_with("the file has several documents"), "{text}");
        }
        for text in ["{}\n---\n", "{}\n...\n", "---\n{}\n---\n# none\n"] {
            assert_eq!(parse(text).unwrap().warnings(), [""; 0], "{text}");
        }
    }

    #[test]
    fn scope_is_not_lost_in_a_second_document_or_key() {
        for (text, expected) in [
            (
                "ci_access: {}\n---\nscope: {namespaces: [a]}\n",
                "config.yaml:2:1: only the first document of a file applies, and scope is in another one",
            ),
            (
                "scope: {namespaces: [a]}\nscope: {namespaces: [b]}\n",
                "config.yaml:2:1: the key scope is set twice",
            ),
            ("scope: {namespaces: [a], namespaces: [b]}\n", "the key scope.namespaces is set twice"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with("config.yaml:") && error.contains(expected), "{text} gave {error}");
        }
    }

    #[test]
    fn gitlab_receives_the_keys_of_the_file_without_defaults() {
        let text = "gitops: {manifest_projects: [{id: a/b, paths: , prune: false}]}\nobservability: {logging: {level: 3}}\n\
                    notify: {projects: [{id: a/b, argocd: {}}]}\ngraph:\nremote_development: {enabled: true}\n";
        let expected = json!({
            "gitops": {"manifest_projects": [{"id": "a/b", "prune": false}]},
            "observability": {"logging": {"level": "error"}},
            "notify": {"projects": [{"id": "a/b", "argocd": {}}]},
            "remote_development": {"enabled": true},
        });
        assert_eq!(parse(text).unwrap().as_written(text), expected);
    }

    #[test]
    fn every_key_of_gitlab_is_accepted() {
        let parsed = parse(include_str!("gitlab_keys.yaml")).unwrap();
        let warnings = parsed.warnings();
        let starts = |key: &str| warnings.iter().any(|warning| warning.starts_with(key));
        for key in [
            "config",
            "container_scanning",
            "flux.webhook_receiver_url",
            "observability.google_profiler",
            "observability.logging.grpc_level",
            "remote_development",
        ] {
            assert!(starts(&format!("{key} ")), "{key} is not in {warnings:?}");
        }
        assert_eq!(warnings.len(), 6, "{warnings:?}");
    }

    #[test]
    fn unknown_key_of_a_section_that_is_not_used_takes_no_access_away() {
        for section in ["container_scanning", "remote_development", "config"] {
            let parsed = parse(&format!(
                "ci_access: {{projects: [{{id: a/b}}]}}\n{section}: {{of_a_later_version: [1]}}\n"
            ))
            .unwrap();
            assert_eq!((parsed.ci_access.as_ref().unwrap().projects.len(), parsed.warnings().len()), (1, 1));
        }
    }

    #[test]
    fn all_wrong_keys_of_a_file_are_named_at_once() {
        let error =
            parse("ci_acces: {}\nscope: {namespaces: [a], of: b}\ngraph: {limits: {objects: many}}\n")
                .unwrap_err();
        assert_eq!(error.lines().count(), 3, "{error}");
        let error = parse(
            "scope: {namespaces: []}\nflux: {webhook_receiver_url: x}\nuser_access: {projects: [{id: ''}]}\n",
        );
        assert_eq!(error.as_ref().unwrap_err().lines().count(), 3, "{error:?}");
    }
}
