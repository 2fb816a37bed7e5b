//! Tests with real repositories, which the program `git` creates. Without it they are skipped by name.

mod https;

use std::{
    fs,
    io::Write as _,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use tempfile::TempDir;

use crate::{
    AGENTS_DIRECTORY, CommitId, FileLimits, FileSelection, InvalidCommitId, Location, Reference, Repository,
    RepositoryError, RepositorySettings, configuration_path, local::LocalRepository,
    remote::RemoteRepository,
};

const MAX: usize = 128 << 10;
const PATH: &str = ".gitlab/agents/prod/config.yaml";
const TEXT: &str = "observability: {logging: {level: debug}}\n";

/// A bare repository, and a work tree to commit to it.
struct Fixture {
    directory: TempDir,
}

impl Fixture {
    /// Returns an empty repository, or `None` without the program `git`.
    fn new() -> Option<Self> {
        let installed = Command::new("git").arg("--version").output().is_ok();
        if !installed {
            // As testing::skip does: CI fails, other machines skip.
            assert!(std::env::var_os("CI").is_none(), "git is not installed");
            return None;
        }
        let fixture = Self { directory: tempfile::tempdir().unwrap() };
        fs::create_dir(fixture.work()).unwrap();
        fixture.git(&["init", "-q", "-b", "main"]);
        let bare = fixture.bare();
        let bare = bare.to_str().unwrap();
        fixture.git(&["init", "-q", "--bare", "-b", "main", bare]);
        fixture.git(&["-C", bare, "config", "uploadpack.allowFilter", "true"]);
        Some(fixture)
    }

    /// Returns a repository with the configuration of one agent.
    fn with_agent() -> Option<Self> {
        let fixture = Self::new()?;
        fixture.write(PATH, TEXT);
        fixture.commit();
        Some(fixture)
    }

    fn work(&self) -> PathBuf {
        self.directory.path().join("work")
    }

    fn bare(&self) -> PathBuf {
        self.directory.path().join("bare.git")
    }

    fn git(&self, arguments: &[&str]) -> String {
        let output = Command::new("git")
            .args(arguments)
            .current_dir(self.work())
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .envs([("GIT_AUTHOR_NAME", "t"), ("GIT_AUTHOR_EMAIL", "t@t")])
            .envs([("GIT_COMMITTER_NAME", "t"), ("GIT_COMMITTER_EMAIL", "t@t")])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.work().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Commits everything to the bare repository.
    fn commit(&self) -> CommitId {
        self.git(&["add", "-A"]);
        self.git(&["commit", "-q", "-m", "change", "--allow-empty"]);
        self.git(&["push", "-q", self.bare().to_str().unwrap(), "HEAD:main"]);
        self.git(&["rev-parse", "HEAD"]).parse().unwrap()
    }

    fn local(&self) -> LocalRepository {
        LocalRepository::new(self.bare(), Reference::Default, AGENTS_DIRECTORY.to_owned())
    }

    /// Returns a repository behind a program that runs the command locally instead of on a server.
    fn ssh(&self) -> RemoteRepository {
        self.ssh_with("for last; do :; done; exec sh -c \"$last\"", None)
    }

    fn ssh_with(&self, script: &str, branch: Option<&str>) -> RemoteRepository {
        let program = self.directory.path().join("ssh");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let settings = RepositorySettings {
            location: Location::Ssh {
                destination: "git@example.com".to_owned(),
                port: None,
                path: self.bare().to_str().unwrap().to_owned(),
                key_file: None,
                known_hosts_file: None,
            },
            reference: Reference::of_branch(branch),
            directory: AGENTS_DIRECTORY.to_owned(),
        };
        RemoteRepository::new(settings).with_ssh(program)
    }

    /// Returns each kind of repository.
    fn all(&self) -> Vec<(&'static str, Arc<dyn Repository>)> {
        vec![("local", Arc::new(self.local())), ("ssh", Arc::new(self.ssh()))]
    }
}

async fn read(repository: &dyn Repository, path: &str) -> Result<Option<String>, RepositoryError> {
    let commit = repository.resolve().await?.expect("there is a commit");
    let content = repository.read_file(&commit.id, path, MAX).await?;
    Ok(content.map(|content| String::from_utf8(content).unwrap()))
}

#[tokio::test]
async fn file_of_the_default_branch_is_read() {
    let Some(fixture) = Fixture::with_agent() else { return };
    for (kind, repository) in fixture.all() {
        let commit = repository.resolve().await.unwrap().unwrap();
        assert_eq!(commit.branch, "main", "{kind}");
        assert_eq!(read(&*repository, PATH).await.unwrap().as_deref(), Some(TEXT), "{kind}");
        assert_eq!(read(&*repository, ".gitlab/agents/other/config.yaml").await.unwrap(), None, "{kind}");
        assert_eq!(read(&*repository, "missing").await.unwrap(), None, "{kind}");
        let below = format!("{PATH}/below");
        assert_eq!(read(&*repository, &below).await.unwrap(), None, "{kind}: a file has no entries");
    }
}

#[tokio::test]
async fn next_commit_is_read_after_the_first() {
    let Some(fixture) = Fixture::with_agent() else { return };
    let repositories = fixture.all();
    for (_, repository) in &repositories {
        read(&**repository, PATH).await.unwrap();
    }
    fixture.write(PATH, "scope: {namespaces: [a]}\n");
    let next = fixture.commit();
    for (kind, repository) in &repositories {
        assert_eq!(repository.resolve().await.unwrap().unwrap().id, next, "{kind}");
        let text = read(&**repository, PATH).await.unwrap();
        assert_eq!(text.as_deref(), Some("scope: {namespaces: [a]}\n"), "{kind}");
    }
}

#[tokio::test]
async fn server_without_filters_sends_all_files() {
    let Some(fixture) = Fixture::with_agent() else { return };
    fixture.git(&["-C", fixture.bare().to_str().unwrap(), "config", "--unset", "uploadpack.allowFilter"]);
    fixture.write("data/other", "other");
    fixture.commit();
    assert_eq!(read(&fixture.ssh(), PATH).await.unwrap().as_deref(), Some(TEXT));
}

#[tokio::test]
async fn repository_without_commits_has_no_commit() {
    let Some(fixture) = Fixture::new() else { return };
    for (kind, repository) in fixture.all() {
        assert_eq!(repository.resolve().await, Ok(None), "{kind}");
    }
}

/// A repository whose default branch was deleted is not one without commits.
#[tokio::test]
async fn default_branch_that_is_gone_is_an_error() {
    let Some(fixture) = Fixture::with_agent() else { return };
    fixture.git(&["push", "-q", fixture.bare().to_str().unwrap(), "HEAD:other"]);
    fixture.git(&["-C", fixture.bare().to_str().unwrap(), "symbolic-ref", "HEAD", "refs/heads/gone"]);
    for (kind, repository) in fixture.all() {
        let error = repository.resolve().await.unwrap_err();
        assert!(matches!(error, RepositoryError::ReferenceNotFound(_)), "{kind}: {error}");
    }
}

#[tokio::test]
async fn missing_branch_is_an_error_and_another_branch_is_read() {
    let Some(fixture) = Fixture::with_agent() else { return };
    fixture.git(&["push", "-q", fixture.bare().to_str().unwrap(), "HEAD:release/1"]);
    let run = "for last; do :; done; exec sh -c \"$last\"";
    for (branch, expected) in [("release/1", true), ("release", false)] {
        let directory = AGENTS_DIRECTORY.to_owned();
        let local = LocalRepository::new(fixture.bare(), Reference::Branch(branch.to_owned()), directory);
        let ssh = fixture.ssh_with(run, Some(branch));
        for result in [local.resolve().await, ssh.resolve().await] {
            if expected {
                assert_eq!(result.unwrap().unwrap().branch, branch)
            } else {
                assert_eq!(
                    result,
                    Err(RepositoryError::ReferenceNotFound(Reference::Branch(branch.to_owned())))
                )
            }
        }
    }
}

fn selection(pattern: &'static str, limits: FileLimits) -> Arc<FileSelection> {
    let extension = pattern.rsplit('*').next().unwrap().to_owned();
    Arc::new(FileSelection::new([pattern], move |path: &str| path.ends_with(&extension), limits))
}

const LIMITS: FileLimits = FileLimits { files: 10, file_bytes: 100, bytes: 200 };

async fn paths(
    repository: &dyn Repository,
    selection: &Arc<FileSelection>,
) -> Result<Vec<String>, RepositoryError> {
    let commit = repository.resolve().await?.expect("there is a commit");
    let files = repository.read_files(&commit.id, selection).await?;
    Ok(files.files.into_iter().map(|file| format!("{} {}", file.path, file.content.len())).collect())
}

#[tokio::test]
async fn selected_files_are_read_together() {
    let Some(fixture) = Fixture::with_agent() else { return };
    for (path, text) in [
        ("b.yaml", "b"),
        ("a/x.yaml", "xx"),
        ("a/deep/y.yaml", "yyy"),
        ("a/z.txt", "z"),
        ("c/.h/i.yaml", "i"),
    ] {
        fixture.write(path, text);
    }
    fixture.commit();
    for (kind, repository) in fixture.all() {
        let all = paths(&*repository, &selection("**/*.yaml", LIMITS)).await.unwrap();
        assert_eq!(
            all,
            ["a/deep/y.yaml 3", "a/x.yaml 2", "b.yaml 1"],
            "{kind}: hidden directories are skipped"
        );
        let below = paths(&*repository, &selection("a/**/*.yaml", LIMITS)).await.unwrap();
        assert_eq!(
            below,
            ["a/deep/y.yaml 3", "a/x.yaml 2", "b.yaml 1"],
            "{kind}: the closure decides about files"
        );
        assert_eq!(paths(&*repository, &selection("*.none", LIMITS)).await.unwrap(), [""; 0], "{kind}");
    }
}

/// Test 51 of the attack list.
#[tokio::test]
async fn limit_of_selected_files_is_an_error_and_no_shorter_list() {
    let Some(fixture) = Fixture::with_agent() else { return };
    for (path, text) in [("a.yaml", "1234"), ("b.yaml", "1234"), ("c.yaml", "12")] {
        fixture.write(path, text);
    }
    fixture.commit();
    for (kind, repository) in fixture.all() {
        let read = async |limits| paths(&*repository, &selection("*.yaml", limits)).await;
        let limits = FileLimits { files: 3, file_bytes: 4, bytes: 10 };
        assert_eq!(read(limits).await.unwrap().len(), 3, "{kind}");
        assert_eq!(
            read(FileLimits { files: 2, ..limits }).await,
            Err(RepositoryError::TooManyFiles(2)),
            "{kind}"
        );
        for limits in [FileLimits { file_bytes: 3, ..limits }, FileLimits { bytes: 9, ..limits }] {
            assert!(matches!(read(limits).await, Err(RepositoryError::TooLarge { .. })), "{kind}");
        }
    }
}

/// Test 49 of the attack list.
#[tokio::test]
async fn link_and_submodule_among_selected_files_are_refused() {
    let Some(fixture) = Fixture::with_agent() else { return };
    symlink("/etc/passwd", fixture.work().join("link.yaml")).unwrap();
    fixture.commit();
    for (kind, repository) in fixture.all() {
        let error = paths(&*repository, &selection("*.yaml", LIMITS)).await.unwrap_err();
        assert_eq!(error.to_string(), "link.yaml is a symbolic link and not a regular file", "{kind}");
    }
    fs::remove_file(fixture.work().join("link.yaml")).unwrap();
    let submodule = format!("160000,{},sub", "1".repeat(40));
    fixture.git(&["update-index", "--add", "--cacheinfo", &submodule]);
    fixture.git(&["rm", "-q", "--cached", "link.yaml"]);
    fixture.git(&["commit", "-q", "-m", "submodule"]);
    fixture.git(&["push", "-q", fixture.bare().to_str().unwrap(), "HEAD:main"]);
    for (kind, repository) in fixture.all() {
        let error = paths(&*repository, &selection("**/*.yaml", LIMITS)).await.unwrap_err();
        assert_eq!(error.to_string(), "sub is a submodule and not a regular file", "{kind}");
        assert!(
            paths(&*repository, &selection("a/*.yaml", LIMITS)).await.is_ok(),
            "{kind}: it cannot be in there"
        );
    }
}

#[tokio::test]
async fn tag_and_commit_are_followed() {
    let Some(fixture) = Fixture::with_agent() else { return };
    fixture.write("a.yaml", "old");
    let old = fixture.commit();
    let bare = fixture.bare();
    fixture.git(&["tag", "light"]);
    fixture.git(&["tag", "-a", "-m", "message", "annotated"]);
    fixture.git(&["push", "-q", bare.to_str().unwrap(), "light", "annotated"]);
    fixture.write("a.yaml", "newer");
    fixture.commit();
    let tag = |name: &str| Reference::Tag(name.to_owned());
    for reference in [tag("light"), tag("annotated"), Reference::Commit(old.clone())] {
        let local: Arc<dyn Repository> =
            Arc::new(LocalRepository::new(bare.clone(), reference.clone(), AGENTS_DIRECTORY.to_owned()));
        let ssh = fixture.ssh();
        let ssh: Arc<dyn Repository> = Arc::new(ssh.following(reference.clone()));
        for repository in [local, ssh] {
            assert_eq!(repository.resolve().await.unwrap().unwrap().id, old, "{reference}");
            assert_eq!(
                paths(&*repository, &selection("*.yaml", LIMITS)).await.unwrap(),
                ["a.yaml 3"],
                "{reference}"
            );
        }
    }
    let missing = LocalRepository::new(bare, tag("gone"), AGENTS_DIRECTORY.to_owned());
    assert_eq!(missing.resolve().await.unwrap_err().to_string(), "the repository has no tag \"gone\"");
}

#[tokio::test]
async fn agents_with_a_configuration_are_listed() {
    let Some(fixture) = Fixture::with_agent() else { return };
    fixture.write(".gitlab/agents/dev/config.yaml", "");
    fixture.write(".gitlab/agents/empty/other.yaml", "");
    fixture.write(".gitlab/agents/UPPER/config.yaml", "");
    fixture.write(".gitlab/agents/nested/config.yaml/file", "");
    fixture.write(".gitlab/agents/config.yaml", "");
    let commit = fixture.commit();
    for (kind, repository) in fixture.all() {
        let agents = repository.list_agents(&commit).await.unwrap();
        assert_eq!(agents, ["dev".parse().unwrap(), "prod".parse().unwrap()], "{kind}");
    }
}

#[tokio::test]
async fn entry_other_than_a_regular_file_is_refused() {
    let Some(fixture) = Fixture::with_agent() else { return };
    let agents = fixture.work().join(AGENTS_DIRECTORY);
    for agent in ["link", "directory"] {
        fs::create_dir_all(agents.join(agent)).unwrap();
    }
    symlink("/etc/passwd", agents.join("link/config.yaml")).unwrap();
    symlink("prod", agents.join("linked")).unwrap();
    fixture.write(".gitlab/agents/directory/config.yaml/file", "");
    let head = fixture.git(&["rev-parse", "HEAD"]);
    fixture.commit();
    let submodule = format!("160000,{head},.gitlab/agents/submodule/config.yaml");
    fixture.git(&["update-index", "--add", "--cacheinfo", &submodule]);
    fixture.git(&["commit", "-q", "-m", "submodule"]);
    fixture.git(&["push", "-q", fixture.bare().to_str().unwrap(), "HEAD:main"]);
    for (kind, repository) in fixture.all() {
        for (path, expected) in [
            ("link/config.yaml", "a symbolic link"),
            ("linked/config.yaml", "a symbolic link"),
            ("directory/config.yaml", "a directory"),
            ("submodule/config.yaml", "a submodule"),
        ] {
            let error = read(&*repository, &format!("{AGENTS_DIRECTORY}/{path}")).await.unwrap_err();
            assert!(
                matches!(&error, RepositoryError::NotAFile { kind, .. } if *kind == expected),
                "{kind}, {path}: {error:?}"
            );
        }
        assert_eq!(read(&*repository, PATH).await.unwrap().as_deref(), Some(TEXT), "{kind}");
    }
}

#[tokio::test]
async fn file_above_the_limit_is_refused_and_others_are_read() {
    let Some(fixture) = Fixture::with_agent() else { return };
    fixture.write(".gitlab/agents/zeros/config.yaml", &"0".repeat(1 << 20));
    let mut random = vec![0; 1 << 20];
    getrandom::fill(&mut random).unwrap();
    let path = fixture.work().join(".gitlab/agents/random/config.yaml");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::File::create(path).unwrap().write_all(&random).unwrap();
    fixture.write("data/large", &"1".repeat(8 << 20));
    fixture.commit();
    for (kind, repository) in fixture.all() {
        for agent in ["zeros", "random"] {
            let path = format!("{AGENTS_DIRECTORY}/{agent}/config.yaml");
            let error = read(&*repository, &path).await.unwrap_err();
            assert_eq!(error, RepositoryError::TooLarge { path, max_bytes: MAX }, "{kind}");
        }
        assert_eq!(read(&*repository, PATH).await.unwrap().as_deref(), Some(TEXT), "{kind}");
    }
}

#[tokio::test]
async fn corrupt_repository_is_an_error() {
    let Some(fixture) = Fixture::with_agent() else { return };
    let commit = fixture.local().resolve().await.unwrap().unwrap().id;
    let object = fixture.bare().join("objects").join(&commit.as_str()[..2]).join(&commit.as_str()[2..]);
    fs::set_permissions(&object, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(&object, b"not zlib").unwrap();
    let error = fixture.local().read_file(&commit, PATH, MAX).await.unwrap_err();
    assert!(matches!(error, RepositoryError::Unavailable(_)), "{error:?}");

    fs::write(fixture.bare().join("HEAD"), "ref: refs/heads/../../../etc/passwd\n").unwrap();
    assert!(fixture.local().resolve().await.is_err());
    fs::write(fixture.bare().join("HEAD"), "ref: HEAD\n").unwrap();
    assert!(fixture.local().resolve().await.is_err(), "a reference to itself");

    let missing = LocalRepository::new("/nowhere".into(), Reference::Default, AGENTS_DIRECTORY.to_owned());
    let error = missing.resolve().await.unwrap_err().to_string();
    assert_eq!(error, "/nowhere is not a Git repository");
}

#[tokio::test]
async fn server_that_fails_is_reported_with_its_error() {
    let Some(fixture) = Fixture::with_agent() else { return };
    for (script, expected) in [
        ("echo 'Permission denied (publickey).' >&2; exit 255", "ssh failed: Permission denied (publickey)."),
        (
            "for line in 1 2 3 4 5 6 7 8 9; do echo @@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@; done >&2; \
             echo 'Host key verification failed.' >&2; exit 255",
            "Host key verification failed.",
        ),
        ("echo hello", "git@example.com:"),
        ("printf '000eversion 1\\n0000'", "git@example.com:"),
        ("for last; do :; done; GIT_PROTOCOL=version=0 exec sh -c \"$last\"", "version 2 of Git's protocol"),
        ("printf '001fERR access denied or so on\\n'", "git@example.com:"),
    ] {
        let error = fixture.ssh_with(script, None).resolve().await.unwrap_err().to_string();
        assert!(error.contains(expected), "{script}: {error}");
    }
    let missing = fixture.ssh().with_ssh("/nowhere/ssh".into());
    let error = missing.resolve().await.unwrap_err().to_string();
    assert!(error.contains("the program ssh is not installed"), "{error}");
}

#[tokio::test]
async fn endless_response_is_cut() {
    let Some(fixture) = Fixture::with_agent() else { return };
    let endless = fixture.ssh_with("printf '000eversion 2\\n'; while :; do printf '000aagent=x'; done", None);
    let error = tokio::time::timeout(Duration::from_secs(300), endless.resolve()).await.unwrap().unwrap_err();
    assert!(matches!(error, RepositoryError::Unavailable(_)), "{error:?}");
}

/// The program must not survive the exchange.
#[tokio::test(start_paused = true)]
async fn server_that_never_responds_is_cut() {
    let Some(fixture) = Fixture::with_agent() else { return };
    let pid = fixture.directory.path().join("pid");
    let silent = fixture.ssh_with(&format!("echo $$ > {}; exec sleep 1000", pid.display()), None);
    // The paused clock advances only while no thread works, so that the thread that reads is bounded by the real one.
    let reading = tokio::spawn(async move { silent.resolve().await });
    while !pid.exists() || fs::read_to_string(&pid).unwrap().is_empty() {
        std::thread::yield_now();
        tokio::task::yield_now().await;
    }
    reading.abort();
    assert!(reading.await.unwrap_err().is_cancelled());
    let process = Path::new("/proc").join(fs::read_to_string(&pid).unwrap().trim());
    let gone = || Command::new("true").stdin(Stdio::null()).status().is_ok() && !process.exists();
    while !gone() {
        std::thread::yield_now();
    }
}

#[test]
fn commit_id_has_the_digits_of_sha1_or_sha256() {
    for length in [40, 64] {
        assert!("a1".repeat(length / 2).parse::<CommitId>().is_ok());
    }
    for text in ["", "main", &"a".repeat(39), &"A".repeat(40), &"g".repeat(40), &"a".repeat(128)] {
        assert_eq!(text.parse::<CommitId>(), Err(InvalidCommitId), "{text}");
    }
}

#[test]
fn configuration_is_in_the_directory_of_the_agent() {
    let agent = "prod".parse().unwrap();
    assert_eq!(configuration_path(AGENTS_DIRECTORY, &agent), ".gitlab/agents/prod/config.yaml");
}
