//! The configuration of one agent: the version in force, and the error of a newer one. No I/O.

use std::{
    collections::BTreeMap,
    path::Path,
    sync::Arc,
    time::{Duration, SystemTime},
};

use access::{AgentIdentity, ConfigurationFile, FileKey, ReadError, Reading, is_about_managed_resources};
use proto::agent_configuration::{AgentConfiguration, ConfigurationUpdate, ProvisionSettings, TemplateFile};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use settings::{KeyLocations, rfc3339};

/// The configuration of one agent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ConfigurationState {
    /// The version in force.
    version: Option<String>,
    /// The configuration in force as JSON, or `None` if no valid one was read yet.
    configuration: Option<Arc<Value>>,
    /// The same as its text has it, without our defaults.
    written: Option<Arc<Value>>,
    warnings: Vec<String>,
    /// The places of the keys that the owner of the cluster may refuse.
    places: BTreeMap<String, String>,
    /// The keys that agentk refuses, each with its place.
    refused: Vec<String>,
    error: Option<ConfigurationError>,
    /// The last time when the source responded.
    observed: Option<SystemTime>,
    /// The last file that the source returned, valid or not.
    last: Option<FileKey>,
    project: Option<String>,
    /// The configuration in force is about managed resources.
    managed: bool,
    /// The template of environments beside the newest file.
    template: Option<TemplateFile>,
}

/// Returns what is wrong with a template of environments, if there is something.
pub type TemplateCheck = fn(&TemplateFile) -> Option<String>;

/// The reason why the newest version cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigurationError {
    /// The part at fault.
    pub fault: ConfigurationFault,
    /// The problem and its place.
    pub message: String,
    /// The time of the first attempt that failed like this.
    pub since: SystemTime,
}

/// The part at fault for an error of a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigurationFault {
    /// The source does not respond.
    Source,
    /// The file cannot be used.
    File,
}

/// The configuration of an agent, as operators see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigurationStatus {
    /// The version in force: a commit, or a digest of a local file.
    pub version: Option<String>,
    /// The last time when the file or the repository was read.
    #[serde(with = "optional_rfc3339")]
    pub read: Option<SystemTime>,
    /// The keys of the file that have no effect.
    pub warnings: Vec<String>,
    /// The reason why the newest version is not in force.
    pub error: Option<String>,
    /// The time since which there is this error.
    #[serde(with = "optional_rfc3339")]
    pub error_since: Option<SystemTime>,
}

/// The kind of the result of one reading, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadResult {
    /// A new version is in force.
    Ok,
    /// The version is the one that was read before.
    Unchanged,
    /// No source knows the agent.
    None,
    /// The file is invalid.
    Invalid,
    /// The file cannot be used: too large, or not a file.
    Refused,
    /// The source does not respond.
    Unavailable,
}

impl ConfigurationState {
    /// Applies the result of reading the sources at `now`. `check` finds what is wrong with a template.
    pub(super) fn apply(
        &mut self,
        result: Result<Option<Reading>, ReadError>,
        now: SystemTime,
        check: TemplateCheck,
    ) -> ReadResult {
        if !matches!(result, Err(ReadError::Unavailable(_))) {
            self.observed = Some(now);
        }
        match result {
            Ok(None) => {
                // A former configuration, also one from an earlier process of kas, is not in force any more.
                *self = Self {
                    observed: self.observed,
                    configuration: Some(Arc::new(Value::Object(serde_json::Map::new()))),
                    ..Self::default()
                };
                ReadResult::None
            }
            Ok(Some(Reading::Unchanged)) => {
                // An error of the file stays, and an outage is over.
                self.error.take_if(|error| error.fault == ConfigurationFault::Source);
                ReadResult::Unchanged
            }
            Ok(Some(Reading::File(file))) => self.apply_file(file, now, check),
            Err(ReadError::Unavailable(what)) => {
                let message = format!("the configuration cannot be read: {what}");
                self.set_error(ConfigurationFault::Source, message, now);
                ReadResult::Unavailable
            }
            Err(ReadError::Refused(what)) => {
                self.last = None;
                self.set_error(ConfigurationFault::File, what, now);
                ReadResult::Refused
            }
        }
    }

    fn apply_file(&mut self, file: ConfigurationFile, now: SystemTime, check: TemplateCheck) -> ReadResult {
        self.last = Some(file.key);
        self.project = file.project;
        let managed = file.content.as_deref().is_some_and(is_about_managed_resources);
        match parse(&file.path, file.content) {
            Ok(ParsedFile { configuration, written, places }) => {
                self.warnings = configuration.warnings();
                self.places = places;
                self.warnings.extend(file.template.as_ref().and_then(check));
                self.managed = managed;
                self.template = file.template;
                let value = serde_json::to_value(&configuration).expect("serializable");
                if self.configuration.as_deref() != Some(&value) {
                    self.configuration = Some(Arc::new(value));
                }
                if self.written.as_deref() != Some(&written) {
                    self.written = Some(Arc::new(written));
                }
                self.version = Some(file.version);
                self.error = None;
                ReadResult::Ok
            }
            Err(what) => {
                let message = format!("{what} (version {})", file.version);
                self.set_error(ConfigurationFault::File, message, now);
                ReadResult::Invalid
            }
        }
    }

    fn set_error(&mut self, fault: ConfigurationFault, message: String, now: SystemTime) {
        if self.error.as_ref().is_none_or(|error| error.message != message) {
            self.error = Some(ConfigurationError { fault, message, since: now });
        }
    }

    /// Returns the key of the last file that the source returned.
    pub(super) fn last(&self) -> Option<&FileKey> {
        self.last.as_ref()
    }

    /// Returns the path of the Git project.
    pub fn project(&self) -> Option<&str> {
        self.project.as_deref()
    }

    /// Returns the configuration in force.
    pub fn configuration(&self) -> Option<&Arc<Value>> {
        self.configuration.as_ref()
    }

    /// Returns the configuration in force as its text has it, or `None` if there is no file.
    pub(super) fn written(&self) -> Option<&Arc<Value>> {
        self.written.as_ref()
    }

    /// Returns the reason why the newest version cannot be used.
    pub fn error(&self) -> Option<&ConfigurationError> {
        self.error.as_ref()
    }

    /// Replaces the keys that agentk refuses. Returns whether they differ.
    pub(super) fn set_refused(&mut self, refused: Vec<String>) -> bool {
        let differs = self.refused != refused;
        self.refused = refused;
        differs
    }

    /// Returns the error of the newest version, unless it is that the source does not respond.
    pub fn fault(&self) -> Option<&str> {
        let error = self.error.as_ref().filter(|error| error.fault == ConfigurationFault::File);
        error.map(|error| &*error.message)
    }

    /// Returns the keys of the file that have no effect.
    pub(super) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns true if agentk should receive this state after `other`.
    pub(super) fn differs(&self, other: &Self) -> bool {
        (&self.version, &self.configuration, &self.error, self.managed, &self.template)
            != (&other.version, &other.configuration, &other.error, other.managed, &other.template)
    }

    /// Returns the message for an agentk, or `None` before the first reading.
    pub fn update(&self, agent: &AgentIdentity) -> Option<ConfigurationUpdate> {
        if self.configuration.is_none() && self.error.is_none() {
            return None;
        }
        let observed = self.observed.unwrap_or(SystemTime::UNIX_EPOCH);
        let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let since = |from: SystemTime, to: SystemTime| millis(to.duration_since(from).unwrap_or_default());
        Some(ConfigurationUpdate {
            observed: since(SystemTime::UNIX_EPOCH, observed),
            age: Some(since(observed, SystemTime::now())),
            version: self.version.clone(),
            configuration: self.configuration.as_deref().cloned(),
            error: self.error.as_ref().map(|error| error.message.clone()),
            places: self.places.clone(),
            provision: Some(ProvisionSettings {
                agent: agent.id,
                name: agent.name.clone(),
                managed: self.managed,
                template: self.template.clone(),
            }),
        })
    }

    /// Returns the state for operators.
    pub fn status(&self) -> ConfigurationStatus {
        let error = self.error.as_ref();
        ConfigurationStatus {
            version: self.version.clone(),
            read: self.observed,
            warnings: self.warnings.iter().chain(&self.refused).cloned().collect(),
            error: error.map(|error| error.message.clone()),
            error_since: error.map(|error| error.since),
        }
    }
}

/// A valid file.
struct ParsedFile {
    configuration: AgentConfiguration,
    written: Value,
    /// The places of the keys that the owner of the cluster may refuse.
    places: BTreeMap<String, String>,
}

fn parse(path: &Path, content: Option<Vec<u8>>) -> Result<ParsedFile, String> {
    let text = String::from_utf8(content.unwrap_or_default())
        .map_err(|_| format!("{}: the file is not UTF-8 text", path.display()))?;
    let configuration = AgentConfiguration::parse(path, &text).map_err(|error| error.to_line())?;
    let written = configuration.as_written(&text);
    let keys = configuration.keys_of_webhooks();
    let known = if keys.is_empty() { KeyLocations::default() } else { KeyLocations::parse(&text) };
    let place = |key: String| {
        let (line, column) = known.locate(&key)?;
        Some((key, format!("{}:{line}:{column}", path.display())))
    };
    Ok(ParsedFile { configuration, written, places: keys.into_iter().filter_map(place).collect() })
}

impl ReadResult {
    /// Returns the value of the metric's label.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unchanged => "unchanged",
            Self::None => "none",
            Self::Invalid => "invalid",
            Self::Refused => "refused",
            Self::Unavailable => "unavailable",
        }
    }
}

mod optional_rfc3339 {
    use std::time::SystemTime;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::rfc3339;

    #[derive(Serialize, Deserialize)]
    struct Time(#[serde(with = "rfc3339")] SystemTime);

    pub(super) fn serialize<S: Serializer>(time: &Option<SystemTime>, to: S) -> Result<S::Ok, S::Error> {
        time.map(Time).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<SystemTime>, D::Error> {
        Ok(Option::<Time>::deserialize(from)?.map(|Time(time)| time))
    }
}

#[cfg(test)]
mod tests {
    use proto::AgentId;

    use super::*;

    const START: SystemTime = SystemTime::UNIX_EPOCH;

    /// Finds something wrong with each template that has no text.
    fn check(template: &TemplateFile) -> Option<String> {
        template.text.as_ref().is_ok_and(String::is_empty).then(|| format!("{}: it is empty", template.path))
    }

    fn at(seconds: u64) -> SystemTime {
        START + Duration::from_secs(seconds)
    }

    fn file(version: &str, content: Option<&str>) -> Result<Option<Reading>, ReadError> {
        Ok(Some(Reading::File(ConfigurationFile {
            key: FileKey(version.to_owned()),
            version: version.to_owned(),
            path: "agents/prod/config.yaml".into(),
            content: content.map(|text| text.as_bytes().to_vec()),
            project: None,
            template: None,
        })))
    }

    fn agent() -> AgentIdentity {
        AgentIdentity { id: AgentId(7), name: "prod".parse().unwrap(), project: None, project_path: None }
    }

    const LEVEL: &str = "observability: {logging: {level: debug}}";

    #[test]
    fn invalid_file_keeps_the_last_good_one() {
        let mut state = ConfigurationState::default();
        assert_eq!(state.update(&agent()), None, "nothing is sent before the first reading");
        assert_eq!(state.apply(file("1", Some(LEVEL)), at(1), check), ReadResult::Ok);
        let good = state.update(&agent()).unwrap();

        assert_eq!(
            state.apply(file("2", Some("observability: {login: {}}")), at(2), check),
            ReadResult::Invalid
        );
        let update = state.update(&agent()).unwrap();
        assert_eq!((&update.version, &update.configuration), (&good.version, &good.configuration));
        let error = update.error.unwrap();
        assert!(
            error.starts_with("agents/prod/config.yaml:1:17: observability.login: unknown field"),
            "{error}"
        );
        assert!(error.ends_with("(version 2)"), "{error}");
        assert_eq!(state.last(), Some(&FileKey("2".to_owned())), "it is not read again");
        state.apply(Ok(Some(Reading::Unchanged)), at(3), check);
        assert_eq!(state.status().error_since, Some(at(2)));

        assert_eq!(state.apply(file("3", None), at(4), check), ReadResult::Ok);
        assert_eq!(state.status().error, None);
        assert_eq!(state.update(&agent()).unwrap().configuration, Some(serde_json::json!({})));
    }

    #[test]
    fn outage_is_an_error_until_the_source_responds() {
        let mut state = ConfigurationState::default();
        let outage = || Err(ReadError::Unavailable("connection refused".to_owned()));
        assert_eq!(state.apply(outage(), at(1), check), ReadResult::Unavailable);
        assert_eq!(state.update(&agent()).unwrap().configuration, None, "agentk keeps the one that it has");
        assert!(state.error().is_some() && state.fault().is_none(), "the configuration may be valid");
        state.apply(file("1", Some(LEVEL)), at(2), check);
        let good = state.clone();
        state.apply(outage(), at(3), check);
        assert!(state.differs(&good));
        assert_eq!(state.status().read, Some(at(2)));
        state.apply(outage(), at(4), check);
        assert_eq!(state.status().error_since, Some(at(3)));
        state.apply(Ok(Some(Reading::Unchanged)), at(5), check);
        assert!(!state.differs(&good));
    }

    #[test]
    fn refused_entry_is_read_again_each_time() {
        let mut state = ConfigurationState::default();
        state.apply(file("1", Some(LEVEL)), at(1), check);
        let refused = Err(ReadError::Refused("config.yaml is a directory".to_owned()));
        assert_eq!(state.apply(refused, at(2), check), ReadResult::Refused);
        assert_eq!((state.last(), state.status().version.as_deref()), (None, Some("1")));
    }

    #[test]
    fn wrong_template_is_a_warning_and_reaches_agentk() {
        let mut state = ConfigurationState::default();
        let with_template = |version: &str, text: &str| {
            let Ok(Some(Reading::File(file))) = file(version, Some(LEVEL)) else { unreachable!() };
            let template = TemplateFile { path: "t/default.yaml".to_owned(), text: Ok(text.to_owned()) };
            Ok(Some(Reading::File(ConfigurationFile { template: Some(template), ..file })))
        };
        assert_eq!(state.apply(with_template("1", ""), at(1), check), ReadResult::Ok);
        assert_eq!(state.warnings(), ["t/default.yaml: it is empty"]);
        let before = state.clone();
        let settings = state.update(&agent()).unwrap().provision.unwrap();
        assert_eq!((settings.agent, settings.template.unwrap().text), (AgentId(7), Ok(String::new())));
        state.apply(with_template("1", "objects: []"), at(2), check);
        assert!(state.warnings().is_empty() && state.differs(&before));
    }

    /// Without the key, agentk must not apply the built-in template.
    #[test]
    fn update_says_whether_the_configuration_is_about_managed_resources() {
        let mut state = ConfigurationState::default();
        let managed = "ci_access: {projects: [{id: a/b, resource_management: {enabled: true}}]}";
        let mut is_managed = |result| {
            state.apply(result, at(1), check);
            state.update(&agent()).unwrap().provision.unwrap().managed
        };
        assert!(!is_managed(file("1", Some(LEVEL))));
        assert!(is_managed(file("2", Some(managed))));
        assert!(is_managed(file("3", Some("wrong: {"))), "the one before stays in force");
        assert!(!is_managed(file("4", None)));
        assert!(is_managed(file("5", Some(managed))));
        assert!(!is_managed(Ok(None)));
    }

    #[test]
    fn agent_without_source_has_an_empty_configuration() {
        let mut state = ConfigurationState::default();
        state.apply(file("1", Some(LEVEL)), at(1), check);
        assert_eq!(state.apply(Ok(None), at(2), check), ReadResult::None);
        let update = state.update(&agent()).unwrap();
        assert_eq!((update.version, update.configuration), (None, Some(serde_json::json!({}))));
    }
}
