//! A Git repository with the configuration of the agent, and servers of it.

use std::{
    fs,
    net::TcpListener,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
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
        commit_in(&self.path, files);
    }

    /// Commits files to a new branch. `HEAD`, which is the default branch for kas, stays `main`.
    pub(crate) fn commit_to_branch(&self, branch: &str, files: &[(&str, &str)]) {
        let directory = tempfile::tempdir().unwrap();
        let worktree = directory.path().join("worktree");
        git(&self.path, &["worktree", "add", "--quiet", "-b", branch, path_argument(&worktree), "main"]);
        let files: Vec<_> = files.iter().map(|(path, text)| (*path, Some(*text))).collect();
        commit_in(&worktree, &files);
        git(&self.path, &["worktree", "remove", "--force", path_argument(&worktree)]);
    }

    /// Returns the id of the commit of a branch.
    pub(crate) fn commit_id(&self, branch: &str) -> String {
        let mut git = Command::new("git");
        let output = run(git.current_dir(&self.path).args(["rev-parse", branch]), b"");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Pushes the branch `main` to a server.
    pub(crate) fn push(&self, server: &GitServer) {
        self.push_refspec(server, "main");
    }

    /// Pushes to a server what a refspec names, such as `main:release`, or `:release` to delete a branch.
    pub(crate) fn push_refspec(&self, server: &GitServer, refspec: &str) {
        let url = server.url.replace("https://", &format!("https://{USER}:{}@", server.password));
        git_with(&self.path, &["push", "--quiet", &url, refspec], &[("GIT_SSL_CAINFO", &server.authority)]);
    }

    /// Pushes to a bare repository of this machine what a refspec names.
    pub(crate) fn push_to(&self, bare: &Path, refspec: &str) {
        git(&self.path, &["push", "--quiet", path_argument(bare), refspec]);
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

/// A bare repository behind the sshd of OpenSSH, at a free port of loopback.
pub(crate) struct SshServer {
    /// The URL of the repository.
    pub(crate) url: String,
    /// The repository.
    pub(crate) bare: PathBuf,
    /// The private key of the client.
    pub(crate) client_key: PathBuf,
    /// The line of the server in a file of known hosts.
    pub(crate) known_host: String,
}

/// The program, which is in no `PATH` of a user.
const SSHD: &str = "/usr/sbin/sshd";

impl SshServer {
    /// Starts a server of a new repository in a directory, or skips the test without OpenSSH.
    pub(crate) fn or_skip(directory: &Path) -> Option<Self> {
        if !Path::new(SSHD).is_file() || !installed("ssh-keygen") {
            skipped("there is no sshd: .ci/install-tools installs it");
            return None;
        }
        let bare = directory.join("served.git");
        git(directory, &["init", "--quiet", "--bare", "--initial-branch=main", path_argument(&bare)]);
        let (host_key, client_key) = (new_ssh_key(directory, "host"), new_ssh_key(directory, "client"));
        let authorized = directory.join("authorized_keys");
        fs::copy(client_key.with_extension("pub"), &authorized).unwrap();
        let config = directory.join("sshd_config");
        let (host, keys) = (host_key.display(), authorized.display());
        let text = format!(
            "HostKey {host}\nAuthorizedKeysFile {keys}\nStrictModes no\nUsePAM no\nPasswordAuthentication no\n\
             KbdInteractiveAuthentication no\nAcceptEnv GIT_PROTOCOL\nPidFile none\n"
        );
        fs::write(&config, text).unwrap();
        // Its directory for the separation of privileges, which the service creates otherwise. Without root it needs none.
        let _ = fs::create_dir_all("/run/sshd");
        let user =
            String::from_utf8(run(Command::new("id").arg("--user").arg("--name"), b"").stdout).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        // Each connection has a process of its own, which ends with it.
        thread::spawn(move || {
            for connection in listener.incoming().map_while(Result::ok) {
                let output = OwnedFd::from(connection.try_clone().unwrap());
                let mut sshd = Command::new(SSHD);
                sshd.args(["-i", "-e", "-f"]).arg(&config).stderr(Stdio::null());
                let child = sshd.stdin(OwnedFd::from(connection)).stdout(output).spawn();
                thread::spawn(move || child.unwrap().wait());
            }
        });
        let public = fs::read_to_string(host_key.with_extension("pub")).unwrap();
        Some(Self {
            url: format!("ssh://{}@127.0.0.1:{port}{}", user.trim(), bare.display()),
            bare,
            client_key,
            known_host: format!("[127.0.0.1]:{port} {public}"),
        })
    }
}

/// Generates a key without a passphrase, and returns the path of the private one.
pub(crate) fn new_ssh_key(directory: &Path, name: &str) -> PathBuf {
    let file = directory.join(name);
    let mut keygen = Command::new("ssh-keygen");
    keygen.args(["-q", "-t", "ed25519", "-N", "", "-C", name, "-f"]).arg(&file);
    let output = run(&mut keygen, b"");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    file
}

/// Runs git without the configuration of the user.
/// Commits versions of files to the branch of a directory. `None` removes a file.
fn commit_in(directory: &Path, files: &[(&str, Option<&str>)]) {
    for (path, text) in files {
        let file = directory.join(path);
        match text {
            Some(text) => {
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, text).unwrap();
            }
            None => fs::remove_file(file).unwrap(),
        }
    }
    git(directory, &["add", "--all"]);
    git(directory, &["commit", "--quiet", "--allow-empty", "--message=change"]);
}

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
