//! A Git repository with the configuration of the agent, and a server of it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use testing::skip::{installed, skipped};

use super::{Certificates, Process, path_argument, run};

/// The server, a program in Python: it runs `git http-backend`.
const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/servers/git_server.py");
/// The file of the agent in a repository.
const FILE: &str = ".gitlab/agents/prod/config.yaml";
/// The user of the server.
const USER: &str = "kas";

/// A work tree on the branch `main`.
pub(crate) struct GitRepository {
    /// The path of the work tree.
    pub(crate) path: PathBuf,
}

/// A Git server with TLS and a password. It serves the repository `agents.git`, to which clients may push.
pub(crate) struct GitServer {
    /// The URL of the repository.
    pub(crate) url: String,
    password: String,
    authority: PathBuf,
    process: Process,
}

impl GitRepository {
    /// Creates an empty repository in a directory, or skips the test without Git.
    pub(crate) fn or_skip(directory: &Path) -> Option<Self> {
        if !installed("git") {
            skipped("there is no git");
            return None;
        }
        let path = directory.join("agents");
        git(directory, &["init", "--quiet", "--initial-branch=main", path_argument(&path)]);
        Some(Self { path })
    }

    /// Commits a version of the configuration.
    pub(crate) fn commit(&self, text: &str) {
        self.commit_files(&[(FILE, Some(text))]);
    }

    /// Commits versions of files. `None` removes a file.
    pub(crate) fn commit_files(&self, files: &[(&str, Option<&str>)]) {
        for (path, text) in files {
            let file = self.path.join(path);
            match text {
                Some(text) => {
                    fs::create_dir_all(file.parent().unwrap()).unwrap();
                    fs::write(file, text).unwrap();
                }
                None => fs::remove_file(file).unwrap(),
            }
        }
        git(&self.path, &["add", "--all"]);
        git(&self.path, &["commit", "--quiet", "--allow-empty", "--message=change"]);
    }

    /// Commits files to a new branch, and returns to `main`.
    pub(crate) fn commit_to_branch(&self, branch: &str, files: &[(&str, &str)]) {
        git(&self.path, &["checkout", "--quiet", "-b", branch]);
        let files: Vec<_> = files.iter().map(|(path, text)| (*path, Some(*text))).collect();
        self.commit_files(&files);
        git(&self.path, &["checkout", "--quiet", "main"]);
    }

    /// Returns the id of the commit of a branch.
    pub(crate) fn commit_id(&self, branch: &str) -> String {
        let mut git = Command::new("git");
        let output = run(git.current_dir(&self.path).args(["rev-parse", branch]), b"");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Pushes the branch to a server.
    pub(crate) fn push(&self, server: &GitServer) {
        let url = server.url.replace("https://", &format!("https://{USER}:{}@", server.password));
        git_with(&self.path, &["push", "--quiet", &url, "main"], &[("GIT_SSL_CAINFO", &server.authority)]);
    }
}

impl GitServer {
    /// Starts a server of a new repository in a directory, or skips the test without Python.
    pub(crate) fn or_skip(directory: &Path, certificates: &Certificates, password: &str) -> Option<Self> {
        if !installed("python3") {
            skipped("there is no python3");
            return None;
        }
        let bare = directory.join("served/agents.git");
        git(directory, &["init", "--quiet", "--bare", "--initial-branch=main", path_argument(&bare)]);
        // As servers of GitLab and GitHub do.
        git(&bare, &["config", "uploadpack.allowFilter", "true"]);
        let mut python = Command::new("python3");
        python.arg(SERVER).arg(bare.parent().unwrap());
        python.args([&certificates.certificate, &certificates.key]).arg(format!("{USER}:{password}"));
        let process = Process::start("the Git server", &mut python);
        let port = process.line("its port", |line| line.starts_with("port "));
        Some(Self {
            url: format!("https://127.0.0.1:{}/agents.git", &port["port ".len()..]),
            password: password.to_owned(),
            authority: certificates.authority.clone(),
            process,
        })
    }

    /// Returns how often clients have sent a command of Git's protocol, such as `ls-refs` or `fetch`.
    pub(crate) fn commands(&self, command: &str) -> usize {
        let line = format!("command {command}");
        self.process.printed().lines().filter(|printed| *printed == line).count()
    }
}

/// Runs git without the configuration of the user.
fn git(directory: &Path, arguments: &[&str]) {
    git_with(directory, arguments, &[]);
}

fn git_with(directory: &Path, arguments: &[&str], variables: &[(&str, &Path)]) {
    let mut git = Command::new("git");
    git.current_dir(directory).env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    git.args(["-c", "user.name=e2e", "-c", "user.email=e2e@example.com", "-c", "http.proxy="])
        .args(arguments);
    let output = run(git.envs(variables.iter().copied()), b"");
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}
