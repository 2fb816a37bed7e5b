//! The configuration file of an agent, with any content.
//!
//! * The file is accepted or rejected quickly and in little memory: aliases do not multiply, and nesting does not overflow the
//!   stack.
//! * Each line of an error begins with the file's name.
//! * An accepted file is the same after it was JSON, and agentk accepts what it applies of it.

use std::path::Path;

use proto::agent_configuration::{AgentConfiguration, AppliedKeys};

/// Checks one input.
pub fn run(data: &[u8]) {
    let Ok(text) = str::from_utf8(data) else { return };
    let configuration = match AgentConfiguration::parse(Path::new("config.yaml"), text) {
        Ok(configuration) => configuration,
        Err(error) => {
            let error = error.to_string();
            for line in error.split('\n') {
                let what = line.strip_prefix("config.yaml:").expect("the file is named");
                assert!(!what.contains(char::is_control), "{error:?}");
            }
            return;
        }
    };
    let json = serde_json::to_value(&configuration).expect("serializable");
    let applied = AppliedKeys::new(&json).expect("agentk accepts what kas accepts");
    assert_eq!((applied.log_level, &applied.scope), (configuration.log_level(), &configuration.scope));
    assert_eq!(serde_json::from_value::<AgentConfiguration>(json).expect("it was serialized"), configuration);
}
