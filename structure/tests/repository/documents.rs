//! The documents name files, sections and attacks that exist.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]
#![allow(clippy::disallowed_methods, reason = "there is no runtime")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};
use structure::root;

/// Endings of words that are taken for paths of this repository.
const ENDINGS: [&str; 6] = [".rs", ".md", ".yaml", ".toml", ".json", ".sh"];

/// The text of a Markdown file without its blocks of code.
fn prose(file: &Path) -> String {
    let text = fs::read_to_string(file).unwrap();
    text.split("```").step_by(2).collect()
}

fn documents() -> Vec<PathBuf> {
    let folders = ["docs", "docs/runbooks", "deploy/charts/kas", "deploy/charts/agentk"];
    let docs = folders.into_iter().flat_map(|folder| fs::read_dir(root().join(folder)).unwrap());
    let docs = docs.map(|entry| entry.unwrap().path());
    let top = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"].map(|name| root().join(name));
    docs.filter(|path| path.extension().is_some_and(|ending| ending == "md")).chain(top).collect()
}

/// The anchors of a document: those that GitHub, GitLab and mdbook make from its headings, and those of its own.
fn anchors(file: &Path) -> BTreeSet<String> {
    let text = prose(file);
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let text = heading.trim_start_matches('#').trim().to_lowercase();
        text.chars()
            .filter(|c| c.is_alphanumeric() || " -_".contains(*c))
            .map(|c| if c == ' ' { '-' } else { c })
            .collect()
    };
    let own = text.split("<a id=\"").skip(1).filter_map(|rest| rest.split_once('"'));
    headings.map(anchor).chain(own.map(|(name, _)| name.to_owned())).collect()
}

/// The targets of the links in a document.
fn targets(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
}

/// The pages of the site, by their paths in `docs`.
fn pages() -> BTreeSet<String> {
    let docs = root().join("docs");
    let documents = documents().into_iter();
    let inside = documents.filter_map(|path| Some(path.strip_prefix(&docs).ok()?.to_str()?.to_owned()));
    inside.filter(|page| page != "SUMMARY.md").collect()
}

#[test]
fn summary_of_the_site_names_each_page_once() {
    let summary = prose(&root().join("docs/SUMMARY.md"));
    let pages = pages();
    let is_named_once = |page: &String| targets(&summary).filter(|target| target == page).count() == 1;
    let wrong: Vec<_> = pages.iter().filter(|page| !is_named_once(page)).collect();
    assert!(wrong.is_empty(), "docs/SUMMARY.md does not name these pages once: {wrong:?}");
    assert!(pages.len() > 60, "{}", pages.len());
}

#[test]
fn pages_begin_with_their_readers_and_end_with_what_to_read_next() {
    let is_complete = |page: &String| {
        let text = fs::read_to_string(root().join("docs").join(page)).unwrap();
        let paragraphs: Vec<_> = text.split("\n\n").collect();
        let last = paragraphs[paragraphs.len() - 1];
        paragraphs[1].starts_with("This page is for ") && last.starts_with("Next: ") && last.contains("](")
    };
    let is_runbook = |page: &String| page.starts_with("runbooks/");
    let incomplete: Vec<_> =
        pages().into_iter().filter(|page| !is_runbook(page) && !is_complete(page)).collect();
    assert!(incomplete.is_empty(), "{incomplete:?}");
}

#[test]
fn each_reason_of_an_error_has_an_anchor() {
    let page = root().join("docs/errors.md");
    let anchors = anchors(&page);
    let text = prose(&page);
    let (_, table) = text.split_once("\n| reason |").unwrap();
    let (table, _) = table.split_once("\n\n").unwrap();
    let reasons = table.lines().skip(2).map(|row| row.split('`').nth(1).unwrap());
    let missing: Vec<_> = reasons.filter(|reason| !anchors.contains(*reason)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn links_lead_to_files_and_sections_that_exist() {
    let mut broken = Vec::new();
    for document in documents() {
        let text = prose(&document);
        for target in targets(&text).filter(|target| !target.contains("://")) {
            let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
            let file = if path.is_empty() { document.clone() } else { document.parent().unwrap().join(path) };
            let found = file.exists() && (anchor.is_empty() || anchors(&file).contains(anchor));
            if !found {
                broken.push(format!("{}: {target}", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn readme_installs_both_programs_in_25_lines() {
    let text = fs::read_to_string(root().join("README.md")).unwrap();
    assert!(text.lines().count() <= 90, "a reader has no time for {} lines", text.lines().count());
    let (_, section) = text.split_once("\n## Install\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    assert!(section.contains("helm install kas") && section.contains("helm install agentk"));
    assert!(section.trim_end().lines().count() < 25, "{section}");
}

/// The test compares the oldest Kubernetes and Helm with the charts, the oldest Redis with its page, and the newest Helm with the one that CI
/// installs. It compares no version of GitLab, and neither the newest Kubernetes nor the newest Redis.
#[test]
fn oldest_supported_versions_are_those_of_charts_and_pages() {
    let read = |file: &str| fs::read_to_string(root().join(file)).unwrap();
    let readme = read("README.md");
    let row = |name: &str| readme.lines().find(|line| line.starts_with(&format!("| {name}"))).unwrap();
    let after = |text: &str, mark: &str| -> String {
        let (_, rest) = text.split_once(mark).unwrap_or_else(|| panic!("there is no {mark}"));
        rest.split('.').take(2).collect::<Vec<_>>().join(".")
    };
    for chart in ["kas", "agentk"] {
        let oldest = after(&read(&format!("deploy/charts/{chart}/Chart.yaml")), "kubeVersion: \">=");
        assert!(row("Kubernetes").contains(&format!("| {oldest} or newer |")), "{oldest}");
        let helm = read(&format!("deploy/charts/{chart}/README.md"));
        let (oldest, _) = helm.split_once("or newer.").unwrap();
        let oldest = oldest.rsplit("Helm ").next().unwrap().trim();
        assert!(row("Helm").contains(&format!("| {oldest} or newer |")), "{oldest}");
    }
    let redis = read("docs/redis.md");
    let (oldest, _) = redis.split_once(" or newer").unwrap();
    let oldest = oldest.rsplit("Redis ").next().unwrap();
    assert!(row("Redis").contains(&format!("| {oldest} or newer")), "{oldest}");
    let installed = after(&read(".ci/install-tools"), "helm-binary==");
    assert!(row("Helm").ends_with(&format!("| {installed} |")), "{installed}");
    assert!(row("GitLab |").contains("no real GitLab was tried"), "no test here proves a version");
}

/// Returns the versions in the names of images, archives and packages of kas and agentk.
fn versions_in_names(text: &str) -> impl Iterator<Item = &str> {
    let names = ["kas:", "kas-", "kas_", "agentk:", "agentk-", "agentk_"];
    let rests = names.into_iter().flat_map(move |name| text.split(name).skip(1));
    let versions = rests.map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        rest[..end].trim_end_matches('.')
    });
    // Ports and names of pods are no versions.
    versions.filter(|version| version.split('.').count() == 3)
}

/// The page about upgrades and the changelog name old versions, too.
#[test]
fn images_and_packages_in_the_documents_have_the_version_in_work() {
    let has_old_versions =
        |file: &PathBuf| ["docs/upgrade.md", "CHANGELOG.md"].iter().any(|name| file.ends_with(name));
    let compose = ["deploy/compose.yaml", "deploy/compose/prepare"].map(|name| root().join(name));
    let (mut known, mut old) = (0, Vec::new());
    for file in documents().into_iter().chain(compose).filter(|file| !has_old_versions(file)) {
        let text = fs::read_to_string(&file).unwrap();
        for version in versions_in_names(&text) {
            if version == env!("CARGO_PKG_VERSION") {
                known += 1;
            } else {
                old.push(format!("{}: {version}", file.display()));
            }
        }
    }
    assert!(old.is_empty(), "{old:#?}");
    assert!(known > 15, "{known}");
}

/// Collects the commands in this script of Redis, each of which follows one of the marks.
fn redis_commands(script: &str, marks: &[&str], commands: &mut BTreeSet<String>) {
    for mark in marks {
        let calls = script.split(mark).skip(1);
        commands.extend(calls.map(|rest| rest.split('\'').next().unwrap().to_lowercase()));
    }
}

/// A script needs the permissions of the commands that it runs.
#[test]
fn permissions_for_redis_are_the_commands_of_the_scripts() {
    let (mut run, mut tried) = (BTreeSet::new(), BTreeSet::new());
    for entry in fs::read_dir(root().join("store/src/redis/scripts")).unwrap() {
        let path = entry.unwrap().path();
        let script = fs::read_to_string(&path).unwrap();
        if path.ends_with("check.lua") {
            redis_commands(&script, &["{ '"], &mut tried);
        } else {
            redis_commands(&script, &["redis.call('", "redis.pcall('"], &mut run);
            let calls = script.matches("redis.call(").count() + script.matches("redis.pcall(").count();
            let named = script.matches("redis.call('").count() + script.matches("redis.pcall('").count();
            assert_eq!(calls, named, "{}: a command that the test does not find", path.display());
        }
    }
    let page = fs::read_to_string(root().join("docs/redis.md")).unwrap();
    let (_, list) = page.split_once("and, for the scripts, `").unwrap();
    let (list, _) = list.split_once('`').unwrap();
    let documented: BTreeSet<String> =
        list.split_whitespace().map(|command| command.trim_start_matches('+').to_owned()).collect();
    assert_eq!(documented, run, "docs/redis.md lists the commands of the scripts");
    assert_eq!(tried, run, "check.lua tries the commands of the scripts");
}

/// The commands are the rows of the tables that begin with an exit code.
#[test]
fn documents_have_the_number_of_compared_commands() {
    let read = |file: &str| fs::read_to_string(root().join(file)).unwrap();
    let performance = read("docs/performance.md");
    let mut total = 0;
    for (group, table) in [
        ("kubectl that reads", "reading"),
        ("kubectl that changes", "changing"),
        ("kubectl with workloads", "workloads"),
        ("kubectl with streams (exec, logs, attach, port-forward, watch)", "streams"),
        ("requests of helm", "helm"),
        ("curl that reads", "http-reading"),
        ("curl that changes", "http-changing"),
    ] {
        let rows = read(&format!("gateway/tests/e2e/differential/tables/{table}.sh"));
        let commands = rows.lines().filter(|row| row.starts_with(|c: char| c.is_ascii_digit())).count();
        let expected = format!("| {group} | {commands} | {commands} |");
        assert!(performance.contains(&expected), "docs/performance.md does not have {expected}");
        total += commands;
    }
    for page in ["docs/performance.md", "docs/clients.md", "docs/protocol.md"] {
        assert!(read(page).contains(&format!("{total} commands")), "{page} does not have {total} commands");
    }
}

/// Returns whether a chart has a value, such as `config.token`.
fn has_value(schema: &serde_json::Value, key: &str) -> bool {
    key.split('.').try_fold(schema, |schema, name| schema["properties"].get(name)).is_some()
}

#[test]
fn values_that_the_documents_give_to_helm_exist() {
    let schema = |chart: &str| -> serde_json::Value {
        let file = root().join("deploy/charts").join(chart).join("values.schema.json");
        serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()
    };
    let schemas = ["kas", "agentk"].map(schema);
    let (mut known, mut unknown) = (0, Vec::new());
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        let after_flag = text.split("--set").skip(1).filter_map(|rest| rest.split_once([' ', '=']));
        for (_, rest) in after_flag.filter(|(flag, _)| ["", "-file", "-string"].contains(flag)) {
            let is_key = |c: char| c.is_ascii_alphanumeric() || c == '.';
            let key = &rest[..rest.find(|c| !is_key(c)).unwrap_or(rest.len())];
            if schemas.iter().any(|schema| has_value(schema, key)) {
                known += 1
            } else {
                unknown.push(format!("{}: {key}", document.display()))
            }
        }
    }
    assert!(unknown.is_empty(), "{unknown:#?}");
    assert!(known > 30, "{known}");
}

/// Returns the commands of a document: in its blocks for a shell, and in backticks.
fn commands(text: &str) -> Vec<String> {
    let (mut commands, parts) = (Vec::new(), text.split("```"));
    for (index, part) in parts.enumerate() {
        if index % 2 == 0 {
            commands.extend(part.split('`').skip(1).step_by(2).map(str::to_owned));
        } else if let Some((_, script)) =
            part.split_once('\n').filter(|(of, _)| ["sh", "console"].contains(of))
        {
            let lines = script.lines().map(|line| line.split(" #").next().unwrap_or_default());
            commands.extend(lines.flat_map(|line| line.split(['&', ';', '|'])).map(str::to_owned));
        }
    }
    commands
}

#[test]
fn targets_of_make_in_the_documents_exist() {
    let makefile = fs::read_to_string(root().join("Makefile")).unwrap();
    let targets: BTreeSet<_> = makefile.lines().filter_map(|line| Some(line.split_once(':')?.0)).collect();
    let (mut known, mut unknown) = (0, Vec::new());
    for document in documents() {
        for command in commands(&fs::read_to_string(&document).unwrap()) {
            let mut words = command.split_whitespace().skip_while(|word| *word == "$");
            if words.next() != Some("make") {
                continue;
            }
            // Variables follow the targets.
            for target in words.take_while(|word| !word.contains('=')) {
                if targets.contains(target) {
                    known += 1;
                } else {
                    unknown.push(format!("{}: make {target}", document.display()));
                }
            }
        }
    }
    assert!(unknown.is_empty(), "{unknown:#?}");
    assert!(known > 70, "{known}");
}

/// Pages name files of `deploy` in commands, in which no link is checked.
#[test]
fn files_of_deploy_in_the_documents_exist() {
    let is_made = |path: &str| path.starts_with("deploy/compose/local");
    // `kubectl exec deploy/agentk` is about a Deployment.
    let is_deployment = |path: &str| ["deploy/kas", "deploy/agentk"].contains(&path);
    let (mut known, mut unknown) = (0, Vec::new());
    for document in documents() {
        let text = fs::read_to_string(&document).unwrap();
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && !"_./-".contains(c));
        let paths = words.map(|word| word.trim_end_matches('.')).filter(|word| word.starts_with("deploy/"));
        for path in paths.filter(|path| !is_made(path) && !is_deployment(path)) {
            if root().join(path).exists() {
                known += 1;
            } else {
                unknown.push(format!("{}: {path}", document.display()));
            }
        }
    }
    assert!(unknown.is_empty(), "{unknown:#?}");
    assert!(known > 50, "{known}");
}

#[test]
fn paths_in_backticks_exist() {
    let mut missing = Vec::new();
    for name in ["README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/architecture.md", "docs/security.md"] {
        let text = prose(&root().join(name));
        let words = text.split('`').skip(1).step_by(2);
        let is_path = |word: &&str| {
            !word.contains([' ', '<', '*', '…'])
                && (ENDINGS.iter().any(|ending| word.ends_with(ending)) && word.contains('/'))
        };
        missing.extend(
            words
                .filter(is_path)
                .filter(|word| !root().join(word).exists())
                .map(|word| format!("{name}: {word}")),
        );
    }
    assert!(missing.is_empty(), "{missing:#?}");
}

/// Collects the text of all Rust files below a folder.
fn sources(folder: &Path, text: &mut String) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("tests") && !path.ends_with("target") {
            sources(&path, text);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            *text += &fs::read_to_string(&path).unwrap();
        }
    }
}

#[test]
fn functions_that_the_architecture_names_exist() {
    let mut code = String::new();
    for folder in ["agent", "common", "features", "gateway", "proto", "router", "store", "tunnel"] {
        sources(&root().join(folder), &mut code);
    }
    let text = prose(&root().join("docs/architecture.md"));
    let words = text.split('`').skip(1).step_by(2);
    let functions = words.filter_map(|word| {
        let (owner, function) = word.split_once("::")?;
        let is_name = |name: &str| name.chars().all(|c| c.is_alphanumeric() || c == '_');
        (is_name(owner) && is_name(function)).then_some((word, owner, function))
    });
    let exists = |kind: &str, name: &str| {
        let declaration = format!("{kind} {name}");
        let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
        code.match_indices(&declaration).any(|(at, _)| ends(&code[at + declaration.len()..]))
    };
    let missing: Vec<_> = functions
        .filter(|(_, owner, function)| {
            !exists("fn", function)
                || !["struct", "enum", "trait", "mod"].iter().any(|kind| exists(kind, owner))
        })
        .map(|(word, ..)| word)
        .collect();
    assert!(missing.is_empty(), "{missing:?}");
}

/// The documents name an item and its file as in `Owner::function` (`path/of/file.rs`).
#[test]
fn named_items_are_in_the_named_files() {
    let mut checked = 0;
    for name in ["docs/architecture.md", "docs/security.md"] {
        let text = prose(&root().join(name));
        let words: Vec<&str> = text.split('`').collect();
        let pairs = words.windows(3).skip(1).step_by(2).filter(|words| words[1].trim() == "(");
        for (item, file) in pairs.map(|words| (words[0], words[2])).filter(|(_, file)| file.ends_with(".rs"))
        {
            let item = item.rsplit("::").next().unwrap();
            let kinds = ["fn ", "struct ", "enum ", "trait ", "const ", "type "];
            let source = fs::read_to_string(root().join(file)).unwrap();
            let found = kinds.iter().any(|kind| source.contains(&format!("{kind}{item}")));
            assert!(found, "{name}: {file} has no {item}");
            checked += 1;
        }
    }
    assert!(checked > 20, "{checked}");
}

/// Collects the numbers of `fn attack_01_…` below a folder.
fn tested_attacks(folder: &Path, numbers: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            tested_attacks(&path, numbers);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let text = fs::read_to_string(&path).unwrap();
            let names = text.split("fn attack_").skip(1);
            numbers
                .extend(names.filter_map(|name| name.split_once('_')).map(|(number, _)| number.to_owned()));
        }
    }
}

#[test]
fn each_attack_test_is_in_the_list_and_each_listed_attack_has_tests() {
    let mut tested = BTreeSet::new();
    for folder in ["gateway/tests", "agent", "features", "store/tests"] {
        tested_attacks(&root().join(folder), &mut tested);
    }
    tested.retain(|number| number.chars().all(|c| c.is_ascii_digit()));
    let text = fs::read_to_string(root().join("docs/security.md")).unwrap();
    let (_, list) = text.split_once("\n## Attacks\n").unwrap();
    let rows: Vec<Vec<&str>> = list
        .lines()
        .filter(|line| line.starts_with('|'))
        .map(|row| row.split('|').map(str::trim).collect())
        .collect();
    let listed: BTreeSet<String> = rows.iter().map(|row| row[1].to_owned()).collect();
    let unlisted: Vec<_> = tested.difference(&listed).collect();
    assert!(unlisted.is_empty(), "tested and not in docs/security.md: {unlisted:?}");

    let numbered = rows.iter().filter(|row| row[1].starts_with(|c: char| c.is_ascii_digit()));
    let untested: Vec<_> = numbered
        .filter(|row| !tested.contains(row[1]) && !row[3].contains('/') && !row[3].starts_with("none: "))
        .collect();
    assert!(untested.is_empty(), "in docs/security.md and not tested: {untested:?}");
}
