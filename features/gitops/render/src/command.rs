//! The command lines of the programs, and their errors.

use std::{
    ffi::OsString,
    fmt, io,
    path::{Path, PathBuf},
};

use proto::agent_configuration::gitops::ManifestProject;

use crate::{
    FileTree, TargetCluster,
    plan::{Job, Tool},
};

/// The directory with the files of the commit, below the temporary one.
const TREE: &str = "tree";
/// The directory with the files of the chart, below the temporary one.
const CHART_DIRECTORY: &str = "chart";
/// The variable with the name of the release, and a template that reads it.
const RELEASE_NAME: (&str, &str) = ("KAS_RELEASE_NAME", r#"{{ env "KAS_RELEASE_NAME" }}"#);
/// The most characters of a program's error that are shown.
const MAX_ERROR: usize = 600;
/// The longest part in brackets of an error that is shown: kustomize puts whole patches there, also of Secrets.
const MAX_BRACKETS: usize = 80;

/// The working directory, the arguments and the environment of a program.
#[derive(Debug)]
pub(crate) struct ProgramCommand {
    pub(crate) directory: PathBuf,
    pub(crate) arguments: Vec<Argument>,
    pub(crate) environment: Vec<(&'static str, OsString)>,
    /// The origins of the files with values, for errors.
    values: Vec<String>,
}

/// An argument of a program. It has no text of a commit or of a configuration: `helm --values a,b` reads two files, and kustomize takes
/// some names of directories for URLs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Argument {
    Constant(&'static str),
    /// A checked version of a [`TargetCluster`].
    Cluster(String),
    /// The name that kas gives to the file with values of this number.
    ValuesFile(usize),
}

/// Writes the files that a job needs below `root`, and returns its command.
pub(crate) fn prepare(
    job: &Job,
    project: &ManifestProject,
    cluster: &TargetCluster,
    tree: &FileTree,
    root: &Path,
) -> io::Result<ProgramCommand> {
    let home = root.join("home");
    std::fs::create_dir(&home)?;
    let environment = vec![
        ("HOME", home.clone().into()),
        ("TMPDIR", home.into()),
        // No process listens on this port: a request that was overlooked ends there if the network cannot be taken away.
        ("HTTP_PROXY", "http://127.0.0.1:9".into()),
        ("HTTPS_PROXY", "http://127.0.0.1:9".into()),
    ];
    let directory = root.to_owned();
    let mut command = ProgramCommand { directory, arguments: Vec::new(), environment, values: Vec::new() };
    match job.tool {
        Tool::Kustomize => command.prepare_kustomize(job, tree)?,
        Tool::Helm => command.prepare_helm(job, project, cluster, tree)?,
    }
    Ok(command)
}

impl ProgramCommand {
    fn prepare_kustomize(&mut self, job: &Job, tree: &FileTree) -> io::Result<()> {
        let root = self.directory.join(TREE);
        for (path, content) in tree {
            write_file(&root, path, content)?;
        }
        self.directory = root.join(&job.directory);
        std::fs::create_dir_all(&self.directory)?;
        self.arguments = ["build", "."].map(Argument::Constant).into();
        Ok(())
    }

    fn prepare_helm(
        &mut self,
        job: &Job,
        project: &ManifestProject,
        cluster: &TargetCluster,
        tree: &FileTree,
    ) -> io::Result<()> {
        let chart = self.directory.join(CHART_DIRECTORY);
        std::fs::create_dir(&chart)?;
        let prefix = if job.directory.is_empty() { String::new() } else { format!("{}/", job.directory) };
        for (path, content) in tree {
            if let Some(path) = path.strip_prefix(&*prefix) {
                write_file(&chart, path, content)?;
            }
        }
        self.arguments = [
            "template",
            CHART_DIRECTORY,
            "--name-template",
            RELEASE_NAME.1,
            "--include-crds",
            "--skip-tests",
            // A schema can refer to files and URLs.
            "--skip-schema-validation",
        ]
        .map(Argument::Constant)
        .into();
        if !cluster.hooks {
            self.arguments.push(Argument::Constant("--no-hooks"));
        }
        if let Some(version) = &cluster.version {
            self.arguments.extend([Argument::Constant("--kube-version"), Argument::Cluster(version.clone())]);
        }
        for version in &cluster.api_versions {
            self.arguments.extend([Argument::Constant("--api-versions"), Argument::Cluster(version.clone())]);
        }
        self.environment.extend([
            (RELEASE_NAME.0, project.release_name(job.name()).into()),
            ("HELM_NAMESPACE", project.default_namespace.clone().into()),
        ]);
        let helm = project.helm.clone().unwrap_or_default();
        for path in helm.values_files {
            let content = tree.get(&path).ok_or_else(|| io::Error::other(format!("{path:?} is missing")))?;
            self.add_values(path, content)?;
        }
        if !helm.values.is_empty() {
            // JSON is YAML. The values of the project are stronger than those of files.
            let values = serde_json::to_vec(&helm.values).expect("it has keys that are text");
            self.add_values("helm.values".to_owned(), &values)?;
        }
        Ok(())
    }

    fn add_values(&mut self, origin: String, content: &[u8]) -> io::Result<()> {
        let file = Argument::ValuesFile(self.values.len());
        std::fs::write(self.directory.join(file.to_string()), content)?;
        self.arguments.extend([Argument::Constant("--values"), file]);
        self.values.push(origin);
        Ok(())
    }

    /// Returns the error of the program on one line, without the names of kas' files.
    pub(crate) fn error_text(&self, stderr: &[u8], root: &Path) -> String {
        let text = String::from_utf8_lossy(stderr);
        let first = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
        let first = first.unwrap_or("it said nothing").trim_start_matches("Error: ");
        let tree = format!("{}/", root.join(TREE).display());
        let mut first = first.replace(&tree, "").replace(&*root.to_string_lossy(), "");
        for (number, origin) in self.values.iter().enumerate() {
            first = first.replace(&Argument::ValuesFile(number).to_string(), origin);
        }
        let shown: String = without_long_brackets(&first).chars().take(MAX_ERROR).collect();
        shown.escape_debug().to_string().replace("\\\"", "\"").replace("\\'", "'")
    }
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Constant(text) => f.write_str(text),
            Self::Cluster(text) => f.write_str(text),
            Self::ValuesFile(number) => write!(f, "kas-values-{number}.yaml"),
        }
    }
}

/// Writes a file of a commit. Git's paths have no empty segments and no `..`, which is checked all the same.
fn write_file(root: &Path, path: &str, content: &[u8]) -> io::Result<()> {
    if path.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err(io::Error::other(format!("{path:?} is not a path of a repository")));
    }
    let file = root.join(path);
    if let Some(parent) = file.parent() {
        std::fs::create_dir_all(parent)?;
    }
    std::fs::write(file, content)
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

    fn tree(files: &[(&str, &str)]) -> FileTree {
        files.iter().map(|(path, text)| ((*path).to_owned(), text.as_bytes().to_vec())).collect()
    }

    fn arguments(command: &ProgramCommand) -> String {
        command.arguments.iter().map(Argument::to_string).collect::<Vec<_>>().join(" ")
    }

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
        let tree = tree(&[("charts/shop/Chart.yaml", "name: shop"), ("env/prod.yaml", "replicas: 2")]);
        let cluster = TargetCluster::new(
            Some("v1.37.0".to_owned()),
            vec!["apps/v1".to_owned(), "v1".to_owned()],
            Vec::new(),
        );
        let command = prepare(&job, &project, &cluster, &tree, root.path()).unwrap();
        assert_eq!(
            arguments(&command),
            "template chart --name-template {{ env \"KAS_RELEASE_NAME\" }} --include-crds --skip-tests --skip-schema-validation \
             --no-hooks --kube-version v1.37.0 --api-versions apps/v1 --api-versions v1 \
             --values kas-values-0.yaml --values kas-values-1.yaml"
        );
        let written = |file: &str| std::fs::read_to_string(command.directory.join(file)).unwrap();
        assert_eq!(written("chart/Chart.yaml"), "name: shop");
        assert_eq!(written("kas-values-0.yaml"), "replicas: 2");
        assert_eq!(written("kas-values-1.yaml"), r#"{"replicas":3}"#);
        let variable = |name: &str| command.environment.iter().find(|(known, _)| *known == name).unwrap();
        assert_eq!(
            (&*variable("KAS_RELEASE_NAME").1, &*variable("HELM_NAMESPACE").1),
            ("shop".as_ref(), "default".as_ref())
        );
        assert!(command.environment.iter().all(|(name, _)| *name != "PATH"));
    }

    /// Each name is one that a program takes for more than one file, for a URL or for a flag.
    #[test]
    fn no_argument_has_text_of_a_commit() {
        for name in ["a,b", "--post-renderer", "https:x", "github.com,x", "{a,b}", "a=b", "a b"] {
            for tool in [Tool::Helm, Tool::Kustomize] {
                let root = tempfile::tempdir().unwrap();
                let values = format!("{name}/{name}.yaml");
                let helm = Helm { values_files: vec![values.clone()], ..Helm::default() };
                let project = ManifestProject { helm: Some(helm), ..ManifestProject::default() };
                let job = Job { tool, directory: name.to_owned() };
                let command =
                    prepare(&job, &project, &TargetCluster::default(), &tree(&[(&values, "")]), root.path())
                        .unwrap();
                assert!(!arguments(&command).contains(name), "{}", arguments(&command));
            }
        }
    }

    #[test]
    fn path_out_of_the_directory_is_not_written() {
        let directory = tempfile::tempdir().unwrap();
        for path in ["../x", "/x", "a//b", "a/../../x"] {
            assert!(write_file(directory.path(), path, &[]).is_err(), "{path}");
        }
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
        let command = ProgramCommand {
            directory: root.to_owned(),
            arguments: Vec::new(),
            environment: Vec::new(),
            values: vec!["env/prod.yaml".to_owned()],
        };
        let text = |stderr: &str| command.error_text(stderr.as_bytes(), root);
        assert_eq!(text("Error: failed to parse kas-values-0.yaml: x"), "failed to parse env/prod.yaml: x");
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
