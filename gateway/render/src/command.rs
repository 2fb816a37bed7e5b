//! The command lines of the programs, and their errors.

use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
};

use proto::agent_configuration::gitops::ManifestProject;

use crate::plan::{Job, Tool};

/// The directory with the files of the commit.
pub(crate) const TREE: &str = "tree";
/// The file with the values of the project's configuration.
const VALUES: &str = "values.yaml";
/// The most characters of a program's error that are shown.
const MAX_ERROR: usize = 600;
/// The longest part in brackets of an error that is shown: kustomize puts whole patches there, also of Secrets.
const MAX_BRACKETS: usize = 80;

/// The arguments and the environment of a program.
#[derive(Debug)]
pub(crate) struct ProgramCommand {
    pub(crate) arguments: Vec<OsString>,
    pub(crate) environment: Vec<(&'static str, OsString)>,
}

/// Returns the command of a job whose tree was written below `root`.
pub(crate) fn of(job: &Job, project: &ManifestProject, root: &Path) -> io::Result<ProgramCommand> {
    let tree = root.join(TREE);
    let directory = tree.join(&job.directory);
    let home = root.join("home");
    std::fs::create_dir_all(&home)?;
    let arguments = match job.tool {
        Tool::Kustomize => vec!["build".into(), directory.into()],
        Tool::Helm => helm(job, project, root, &tree, directory)?,
    };
    let environment = vec![
        ("HOME", home.clone().into()),
        ("TMPDIR", home.into()),
        // No process listens on this port: a request that was overlooked ends there if the network cannot be taken away.
        ("HTTP_PROXY", "http://127.0.0.1:9".into()),
        ("HTTPS_PROXY", "http://127.0.0.1:9".into()),
    ];
    Ok(ProgramCommand { arguments, environment })
}

fn helm(
    job: &Job,
    project: &ManifestProject,
    root: &Path,
    tree: &Path,
    directory: PathBuf,
) -> io::Result<Vec<OsString>> {
    let mut arguments: Vec<OsString> = vec![
        "template".into(),
        project.release_name(job.name()).into(),
        directory.into(),
        "--namespace".into(),
        project.default_namespace.clone().into(),
        "--include-crds".into(),
        "--no-hooks".into(),
        // A schema can refer to files and URLs.
        "--skip-schema-validation".into(),
    ];
    let helm = project.helm.clone().unwrap_or_default();
    for file in &helm.values_files {
        arguments.extend(["--values".into(), tree.join(file).into()]);
    }
    if !helm.values.is_empty() {
        // JSON is YAML. The values of the project are stronger than those of files.
        let values = serde_json::to_vec(&helm.values).expect("it has keys that are text");
        std::fs::write(root.join(VALUES), values)?;
        arguments.extend(["--values".into(), root.join(VALUES).into()]);
    }
    Ok(arguments)
}

/// Returns the error of a program on one line, without the name of the temporary directory.
pub(crate) fn error_text(stderr: &[u8], root: &Path) -> String {
    let text = String::from_utf8_lossy(stderr);
    let tree = format!("{}/", root.join(TREE).display());
    let first = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
    let first = first.unwrap_or("it said nothing").trim_start_matches("Error: ");
    let first = first.replace(&tree, "").replace(&*root.to_string_lossy(), "");
    let shown: String = without_long_brackets(&first).chars().take(MAX_ERROR).collect();
    shown.escape_debug().to_string().replace("\\\"", "\"").replace("\\'", "'")
}

/// Returns whether a program of Go ended because it got no more memory. A new thread needs some, too.
pub(crate) fn is_out_of_memory(stderr: &[u8]) -> bool {
    let text = String::from_utf8_lossy(stderr);
    let words = ["out of memory", "cannot allocate memory", "pthread_create failed"];
    text.lines()
        .filter(|line| {
            ["fatal error: ", "runtime: ", "runtime/cgo: "].iter().any(|start| line.starts_with(start))
        })
        .any(|line| words.iter().any(|words| line.contains(words)))
}

fn without_long_brackets(text: &str) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some(start) = rest.find('[') {
        let end = rest[start..].find(']').map_or(rest.len(), |end| start + end + 1);
        shown += &rest[..start];
        shown += if end - start > MAX_BRACKETS { "[…]" } else { &rest[start..end] };
        rest = &rest[end..];
    }
    shown + rest
}

#[cfg(test)]
mod tests {
    use proto::agent_configuration::gitops::Helm;

    use super::*;

    #[test]
    fn helm_receives_the_values_of_files_and_then_those_of_the_project() {
        let root = tempfile::tempdir().unwrap();
        let helm = Helm {
            release_name: None,
            values_files: vec!["env/prod.yaml".to_owned()],
            values: serde_json::json!({"replicas": 3}).as_object().unwrap().clone(),
        };
        let project = ManifestProject { helm: Some(helm), ..ManifestProject::default() };
        let job = Job { tool: Tool::Helm, directory: "charts/shop".to_owned() };
        let command = of(&job, &project, root.path()).unwrap();
        let arguments: Vec<_> = command.arguments.iter().map(|argument| argument.to_string_lossy()).collect();
        let expected = "template shop R/tree/charts/shop --namespace default --include-crds --no-hooks --skip-schema-validation \
                        --values R/tree/env/prod.yaml --values R/values.yaml";
        assert_eq!(arguments.join(" ").replace(&*root.path().to_string_lossy(), "R"), expected);
        assert_eq!(std::fs::read_to_string(root.path().join(VALUES)).unwrap(), r#"{"replicas":3}"#);
        assert!(command.environment.iter().all(|(name, _)| *name != "PATH"));
    }

    #[test]
    fn end_without_memory_is_recognized() {
        for stderr in [
            "fatal error: runtime: cannot allocate memory\nruntime stack:\n",
            "runtime: out of memory: cannot allocate 4194304-byte block\nfatal error: out of memory\n",
            "runtime/cgo: pthread_create failed: Resource temporarily unavailable\nSIGABRT: abort\n",
        ] {
            assert!(is_out_of_memory(stderr.as_bytes()), "{stderr}");
        }
        assert!(!is_out_of_memory(b"Error: the file out of memory does not exist\n"));
    }

    #[test]
    fn error_has_one_line_no_temporary_path_and_no_patch() {
        let root = Path::new("/tmp/kas-render-x");
        let text = |stderr: &str| error_text(stderr.as_bytes(), root);
        assert_eq!(
            text("Error: no file '/tmp/kas-render-x/tree/prod/a.yaml'\nmore\n"),
            "no file 'prod/a.yaml'"
        );
        assert_eq!(text("# Warning: old key\nError: [a] \u{1b}[2J"), "[a] \\u{1b}[2J");
        let patch = format!("Error: unable to parse patch from [{}]", "password: hunter2 ".repeat(9));
        assert_eq!(text(&patch), "unable to parse patch from […]");
        assert_eq!(text("Error: [unclosed "), "[unclosed");
        assert_eq!(text(""), "it said nothing");
        assert_eq!(text(&"x".repeat(9000)).len(), MAX_ERROR);
    }
}
