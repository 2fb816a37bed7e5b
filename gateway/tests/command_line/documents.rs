//! The documents agree with the programs: their commands parse, their files are valid, and each field of a custom resource is described.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::disallowed_methods, reason = "there is no runtime")]

mod shell;

use std::{
    fs,
    path::{Path, PathBuf},
};

use access::Identity;
use clap::{Parser as _, error::ErrorKind};
use gateway::config::Config;
use proto::agent_configuration::AgentConfiguration;
use serde_json::Value;
use testing::json_schema::Validator;

use self::shell::commands;

/// The folders with pages.
const FOLDERS: [&str; 4] = ["docs", "docs/runbooks", "deploy/charts/kas", "deploy/charts/agentk"];
/// Keys of files that kas and agentk do not read, and of parts of files: they only have to be YAML.
const OTHER_KEYS: [&str; 13] = [
    // Objects and kubeconfigs, jobs of GitLab and GitHub, Dex, Prometheus.
    "apiVersion",
    "clusters",
    "deploy",
    "stop",
    "check-agents",
    "jobs",
    "issuer",
    "scrape_configs",
    // The chart of Headlamp, and parts of a pod, of a job and of the configuration of an agent.
    "volumeMounts",
    "env",
    "environment",
    "ignore_differences",
    "preview",
];
/// Errors of examples in which keys, hashes of tokens and agents are left out.
const LEFT_OUT: [&str; 4] =
    [" is missing", "the hash of a token is", "there is no agent ", " does not exist"];

/// A file that kas, agentk or a chart reads.
struct Format {
    /// The keys on its first level.
    keys: &'static [&'static str],
    parse: fn(&Path, &str) -> Result<(), String>,
}

const FORMATS: [Format; 5] = [
    Format {
        keys: &[
            "agent",
            "api",
            "disabled",
            "environments",
            "events",
            "gitaly",
            "gitlab",
            "identity",
            "observability",
            "oidc",
            "private_api",
            "redis",
            "web",
        ],
        parse: |file, text| {
            settings::parse::<Config>(file, text).map(drop).map_err(|error| error.to_string())
        },
    },
    Format {
        keys: &["agents", "callers"],
        parse: |file, text| Identity::parse(file, text).map(drop).map_err(|error| error.to_string()),
    },
    Format {
        keys: &[
            "alerts",
            "ci_access",
            "environments",
            "events",
            "flux",
            "gitops",
            "graph",
            "notify",
            "observability",
            "scope",
            "user_access",
        ],
        parse: |file, text| {
            AgentConfiguration::parse(file, text).map(drop).map_err(|error| error.to_string())
        },
    },
    Format {
        keys: &["mode", "objects", "rules", "webhooks"],
        parse: |file, text| {
            agentk_policy::Policy::parse(file, text).map(drop).map_err(|error| error.to_string())
        },
    },
    Format { keys: &["podSecurityContext", "rbac"], parse: values_of_a_chart },
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns each page with its path.
fn documents() -> Vec<(String, String)> {
    let folders = FOLDERS.into_iter().flat_map(|folder| fs::read_dir(root().join(folder)).unwrap());
    let files = folders.map(|file| file.unwrap().path());
    let pages = files.filter(|file| file.extension().is_some_and(|ending| ending == "md"));
    let top = ["README.md", "CONTRIBUTING.md", "SECURITY.md"].map(|name| root().join(name));
    pages.chain(top).map(|file| (file.display().to_string(), fs::read_to_string(&file).unwrap())).collect()
}

/// Returns the blocks of code in a language, without the indentation that they have in a list.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let (mut blocks, mut lines) = (Vec::new(), text.lines());
    while let Some(line) = lines.next() {
        let Some(found) = line.trim_start().strip_prefix("```") else { continue };
        let indent = line.len() - line.trim_start().len();
        let content = lines.by_ref().take_while(|line| !line.trim_start().starts_with("```"));
        let content: String =
            content.map(|line| line.get(indent..).unwrap_or_default().to_owned() + "\n").collect();
        if found == language {
            blocks.push(content);
        }
    }
    blocks
}

/// Returns the lines of a document for a shell, with their continuations.
fn shell_lines(text: &str) -> Vec<String> {
    let whole = |block: &String| block.replace("\\\n", " ");
    let scripts = blocks(text, "sh");
    let scripts: Vec<String> = scripts.iter().map(whole).collect();
    let sessions: Vec<String> = blocks(text, "console").iter().map(whole).collect();
    let typed =
        sessions.iter().flat_map(|session| session.lines()).filter_map(|line| line.strip_prefix("$ "));
    scripts.iter().flat_map(|script| script.lines()).chain(typed).map(str::to_owned).collect()
}

/// Returns the command lines of kas and agentk in a command, also those behind `--`, such as in `kubectl exec`.
fn own_commands(words: &[String]) -> Vec<&[String]> {
    let is_assignment = |word: &&String| {
        word.split_once('=')
            .is_some_and(|(key, _)| key.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_'))
    };
    let words = &words[words.iter().take_while(is_assignment).count()..];
    let is_own = |program: &String| {
        let name = program.rsplit('/').next().unwrap_or_default();
        ["kas", "agentk"].contains(&name) && !program.starts_with("deploy/")
    };
    let inner = words.iter().position(|word| word == "--").map(|at| own_commands(&words[at + 1..]));
    let own = words.first().is_some_and(is_own).then_some(words);
    own.into_iter().chain(inner.into_iter().flatten()).collect()
}

fn parse(words: &[String]) -> Result<(), clap::Error> {
    if words[0].ends_with("agentk") {
        return agent::cli::Cli::from_arguments(words).map(drop);
    }
    let caller = ["--server", "https://kas.example.com", "--token-file", "token"].map(str::to_owned);
    match gateway::cli::Cli::try_parse_from(words) {
        // Pages name the server and the token in the environment.
        Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => {
            gateway::cli::Cli::try_parse_from([words, &caller].concat()).map(drop)
        }
        parsed => parsed.map(drop),
    }
}

#[test]
fn each_command_of_kas_and_agentk_in_the_documents_is_valid() {
    let (mut good, mut shortened, mut wrong) = (0, 0, Vec::new());
    for (document, text) in documents() {
        let lines = shell_lines(&text);
        for command in lines.iter().flat_map(|line| commands(line)) {
            for words in own_commands(&command) {
                let help = [ErrorKind::DisplayHelp, ErrorKind::DisplayVersion];
                match parse(words) {
                    _ if words.iter().any(|word| word.contains('…')) => shortened += 1,
                    Err(error) if !help.contains(&error.kind()) => {
                        wrong.push(format!("{document}: {}: {error}", words.join(" ")));
                    }
                    _ => good += 1,
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(good > 90 && shortened < 5, "{good} and {shortened} with …");
}

fn values_of_a_chart(_: &Path, text: &str) -> Result<(), String> {
    let values: Value = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    let has_them = |chart: &str| {
        let schema = root().join("deploy/charts").join(chart).join("values.schema.json");
        let schema = serde_json::from_str(&fs::read_to_string(schema).unwrap()).unwrap();
        Validator::new(schema).is_valid(&values)
    };
    ["kas", "agentk"]
        .into_iter()
        .any(has_them)
        .then_some(())
        .ok_or_else(|| "no chart has these values".to_owned())
}

/// Checks a block of YAML. Returns whether kas, agentk or a chart reads such a file.
fn check_yaml(text: &str) -> Result<bool, String> {
    let objects = serde_saphyr::from_multiple::<Value>(text).map_err(|error| error.to_string())?;
    let [Value::Object(object)] = &objects[..] else { return Ok(false) };
    let has_key = |key: &&str| object.contains_key(*key);
    // Rules of a policy have an action, and those of a Role have the same key.
    if OTHER_KEYS.iter().any(has_key) || object.contains_key("rules") && !text.contains("action:") {
        return Ok(false);
    }
    let is_read = |format: &&Format| object.keys().all(|key| format.keys.contains(&&**key));
    let mut errors = Vec::new();
    for format in FORMATS.iter().filter(is_read) {
        match (format.parse)(Path::new("example.yaml"), text) {
            Err(error) if error.lines().any(|line| !LEFT_OUT.iter().any(|part| line.contains(part))) => {
                errors.push(error);
            }
            _ => return Ok(true),
        }
    }
    if errors.is_empty() {
        errors.push("no known file has these keys".to_owned());
    }
    Err(errors.join("; "))
}

#[test]
fn each_yaml_file_in_the_documents_is_valid() {
    let (mut read, mut wrong) = (0, Vec::new());
    for (document, text) in documents() {
        for block in blocks(&text, "yaml") {
            match check_yaml(&block) {
                Ok(is_read) => read += usize::from(is_read),
                Err(error) => wrong.push(format!("{document}: {error}\n{block}")),
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(read > 50, "{read}");
}

/// Returns the rows of a schema: path, type and description of each field below `path`.
fn rows(schema: &Value, path: &str) -> Vec<String> {
    let Some(fields) = schema["properties"].as_object() else {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let mut kind = text(&schema["type"]);
        if kind == "array" {
            kind = format!("array of {}", text(&schema["items"]["type"]));
        }
        if let Some(format) = schema["format"].as_str() {
            kind = format!("{kind} ({format})");
        }
        return vec![format!("| `{path}` | {kind} | {} |", text(&schema["description"]))];
    };
    let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    fields.iter().flat_map(|(name, field)| rows(field, &below(name))).collect()
}

#[test]
fn page_of_custom_resources_has_each_field_of_each_definition() {
    let page = fs::read_to_string(root().join("docs/custom-resources.md")).unwrap();
    let documented = page.lines().filter(|line| line.starts_with("| `"));
    let mut documented: Vec<String> = documented.map(str::to_owned).collect();
    let mut expected = Vec::new();
    for file in fs::read_dir(root().join("deploy/charts/agentk/templates")).unwrap() {
        // There is a folder beside the templates.
        let text = fs::read_to_string(file.unwrap().path()).unwrap_or_default();
        if !text.contains("\nkind: CustomResourceDefinition\n") {
            continue;
        }
        let plain: Vec<&str> = text.lines().filter(|line| !line.contains("{{")).collect();
        let definition: Value = serde_saphyr::from_str(&plain.join("\n")).unwrap();
        let spec = &definition["spec"];
        let version = &spec["versions"][0];
        for name in [&definition["metadata"]["name"], &spec["names"]["kind"], &version["name"]] {
            let name = format!("`{}`", name.as_str().unwrap());
            assert!(page.contains(&name), "docs/custom-resources.md does not name {name}");
        }
        expected.extend(rows(&version["schema"]["openAPIV3Schema"], ""));
    }
    assert!(expected.len() >= 9, "{expected:#?}");
    documented.sort();
    expected.sort();
    assert_eq!(documented, expected);
}
