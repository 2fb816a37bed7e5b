//! Repositories of Gitaly, whose stand-in serves a real one.
#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

use std::{io, sync::Arc};

use git::{Commit, Reference, Repository, RepositoryError};
use kas_gitlab::gitaly::{GitalyClient, GitalyConfig, GitalyRepository, GitalyServer};
use kas_testing::gitaly::{TestFile, TestGitaly, server};
use rcgen::{CertificateParams, KeyPair};
use rustls::{ClientConfig, RootCertStore, ServerConfig, pki_types::PrivateKeyDer};
use tokio::{io::AsyncWriteExt as _, net::TcpListener};
use tokio_rustls::TlsAcceptor;
use tonic::Status;

fn client() -> GitalyClient {
    GitalyClient::new(&GitalyConfig::default(), None, None)
}

fn repository(gitaly: &TestGitaly, server: GitalyServer, branch: Option<&str>) -> GitalyRepository {
    GitalyRepository::new(client(), server, gitaly.location(), Reference::of_branch(branch), None)
}

async fn gitaly_with(files: &[(&str, TestFile<'_>)]) -> (TestGitaly, GitalyRepository, Commit) {
    let gitaly = TestGitaly::new();
    let id = gitaly.repository.commit("main", files).parse().unwrap();
    let server = gitaly.listen().await;
    let repository = repository(&gitaly, server, None);
    (gitaly, repository, Commit { id, branch: "main".into() })
}

fn unavailable(error: RepositoryError) -> String {
    match error {
        RepositoryError::Unavailable(problem) => problem,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn branch_or_head_resolves_to_its_commit() {
    let gitaly = TestGitaly::new();
    let server = gitaly.listen().await;
    let head = repository(&gitaly, server.clone(), None);
    assert_eq!(head.resolve().await, Ok(None), "no commit yet");
    let first = gitaly.repository.commit("main", &[("a", TestFile::Content(b"a"))]);
    let other = gitaly.repository.commit("feature/x", &[("b", TestFile::Content(b"b"))]);
    // The list has several parts.
    for number in 0..50 {
        gitaly.repository.git(&["branch", &format!("branch-{number}"), "main"]);
    }
    let commit = |id: &str, branch: &str| Some(Commit { id: id.parse().unwrap(), branch: branch.into() });
    assert_eq!(head.resolve().await, Ok(commit(&first, "main")));
    let branch = |name| repository(&gitaly, server.clone(), Some(name));
    assert_eq!(branch("feature/x").resolve().await, Ok(commit(&other, "feature/x")));
    assert_eq!(branch("").resolve().await, Ok(commit(&first, "main")), "an empty name is no branch");
    assert_eq!(
        branch("gone").resolve().await,
        Err(RepositoryError::ReferenceNotFound(Reference::Branch("gone".into())))
    );
    gitaly.repository.git(&["symbolic-ref", "HEAD", "refs/heads/unborn"]);
    assert_eq!(head.resolve().await, Err(RepositoryError::ReferenceNotFound(Reference::Default)));
}

#[tokio::test]
async fn regular_file_is_read_within_its_limit() {
    let content: Vec<u8> = (0..5000).map(|number| number as u8).collect();
    let (gitaly, repository, commit) = gitaly_with(&[
        ("directory/file", TestFile::Content(&content)),
        ("empty", TestFile::Content(b"")),
        ("link", TestFile::Link("/etc/passwd")),
    ])
    .await;
    let read = |path, max_bytes| repository.read_file(&commit.id, path, max_bytes);
    assert_eq!(read("directory/file", 5000).await, Ok(Some(content.clone())));
    assert_eq!(read("empty", 0).await, Ok(Some(Vec::new())));
    assert_eq!(read("missing", 5000).await, Ok(None));
    let not_a_file = |path: &str, kind| Err(RepositoryError::NotAFile { path: path.into(), kind });
    assert_eq!(read("link", 5000).await, not_a_file("link", "a symbolic link"));
    assert_eq!(read("directory", 5000).await, not_a_file("directory", "a directory"));
    let too_large = Err(RepositoryError::TooLarge { path: "directory/file".into(), max_bytes: 4999 });
    assert_eq!(read("directory/file", 4999).await, too_large);
    gitaly.ignore_max_size();
    assert_eq!(read("directory/file", 4999).await, too_large, "the server sends too much");
}

#[tokio::test]
async fn agents_with_a_configuration_file_are_listed() {
    let file = || TestFile::Content(b"{}");
    let (_gitaly, repository, commit) = gitaly_with(&[
        (".gitlab/agents/prod/config.yaml", file()),
        (".gitlab/agents/a-b/config.yaml", file()),
        (".gitlab/agents/a/config.yaml", file()),
        (".gitlab/agents/empty/README.md", file()),
        (".gitlab/agents/deep/er/config.yaml", file()),
        (".gitlab/agents/Not_A_Name/config.yaml", file()),
        (".gitlab/agents/directory/config.yaml/x", file()),
        (".gitlab/agents/link/config.yaml", TestFile::Link("../prod/config.yaml")),
        (".gitlab/agents/config.yaml", file()),
        ("prod/config.yaml", file()),
    ])
    .await;
    let agents = repository.list_agents(&commit.id).await.unwrap();
    assert_eq!(agents.iter().map(|agent| agent.as_str()).collect::<Vec<_>>(), ["a", "a-b", "prod"]);

    let (_gitaly, repository, commit) = gitaly_with(&[("README", file())]).await;
    assert_eq!(repository.list_agents(&commit.id).await, Ok(Vec::new()), "the directory is missing");
}

#[tokio::test]
async fn call_has_a_token_and_the_features_of_gitlab_only() {
    let gitaly = TestGitaly::new();
    let mut server = gitaly.listen().await;
    for (key, value) in [
        ("gitaly-feature-other", "false"),
        ("authorization", "Bearer stolen"),
        ("gitaly-feature-bad", "new\nline"),
        ("gitaly-feature-b d", "true"),
        ("x-gitlab", "true"),
    ] {
        server.features.insert(key.into(), value.into());
    }
    repository(&gitaly, server, None).resolve().await.unwrap();
    let calls = gitaly.calls();
    let [(method, metadata)] = &calls[..] else { panic!("{calls:?}") };
    assert_eq!(*method, "InfoRefsUploadPack");
    let value = |key| metadata.get(key).map(|value| value.to_str().unwrap());
    assert_eq!(value("gitaly-feature-quick"), Some("true"));
    assert_eq!(value("gitaly-feature-other"), Some("false"));
    assert_eq!(value("x-gitlab"), None);
    assert_eq!(value("gitaly-feature-bad"), None);
    assert!(value("user-agent").unwrap().starts_with("gitlab-kas/"), "{metadata:?}");
    assert_eq!(metadata.get_all("authorization").iter().count(), 1);
}

#[tokio::test]
async fn refused_token_and_failed_server_are_reported() {
    let gitaly = TestGitaly::new();
    let good = gitaly.listen().await;
    let resolve =
        |server| async { unavailable(repository(&gitaly, server, None).resolve().await.unwrap_err()) };
    for token in ["", "another"] {
        let problem = resolve(GitalyServer { token: token.into(), ..good.clone() }).await;
        assert!(problem.starts_with("Gitaly refuses the token that GitLab sent"), "{problem}");
    }
    gitaly.fail_with(Status::internal(format!("disk\n{}", "x".repeat(10_000))));
    let problem = resolve(good).await;
    assert!(problem.starts_with("Gitaly: Internal: disk\\nxxx") && problem.len() < 300, "{problem}");
    let problem = resolve(server("http://gitaly".into())).await;
    assert!(problem.contains("is no address of Gitaly"), "{problem}");
    let problem = resolve(server("unix:/nowhere/gitaly.socket".into())).await;
    assert!(problem.contains("/nowhere/gitaly.socket"), "{problem}");
}

#[tokio::test]
async fn each_kind_of_address_is_reached() {
    let gitaly = TestGitaly::new();
    let commit = gitaly.repository.commit("main", &[]);
    let tcp = gitaly.listen().await;
    let port = tcp.address.rsplit_once(':').unwrap().1.to_owned();
    let dns = server(format!("dns:localhost:{port}"));
    for server in [tcp, dns, gitaly.listen_on_socket()] {
        let address = server.address.clone();
        let found = repository(&gitaly, server, None).resolve().await.unwrap().unwrap();
        assert_eq!(found.id.as_str(), commit, "{address}");
    }
}

#[tokio::test]
async fn tls_verifies_the_server() {
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(["localhost".into()]).unwrap().self_signed(&key).unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    let mut config = ServerConfig::builder_with_provider(tls::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = Arc::new(TcpListener::bind("127.0.0.1:0").await.unwrap());
    let port = listener.local_addr().unwrap().port();
    let gitaly = TestGitaly::new();
    gitaly.serve_each(move || {
        let (listener, acceptor) = (Arc::clone(&listener), acceptor.clone());
        async move { acceptor.accept(listener.accept().await?.0).await }
    });

    let mut roots = RootCertStore::empty();
    roots.add(certificate.der().clone()).unwrap();
    let trusting = ClientConfig::builder_with_provider(tls::provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let server = server(format!("tls://localhost:{port}"));
    let client = GitalyClient::new(&GitalyConfig::default(), None, Some(Arc::new(trusting)));
    let trusted = GitalyRepository::new(client, server.clone(), gitaly.location(), Reference::Default, None);
    assert_eq!(trusted.resolve().await, Ok(None));
    let problem = unavailable(repository(&gitaly, server, None).resolve().await.unwrap_err());
    assert!(problem.contains("certificate"), "{problem}");
}

#[tokio::test]
async fn restarted_server_is_reached_again() {
    let gitaly = TestGitaly::new();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let repository = repository(&gitaly, server(format!("tcp://{address}")), None);
    let first = async {
        let (mut io, _) = listener.accept().await?;
        io.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await?;
        io.shutdown().await
    };
    let (served, resolved): (io::Result<()>, _) = tokio::join!(first, repository.resolve());
    served.unwrap();
    unavailable(resolved.unwrap_err());
    let listener = Arc::new(listener);
    gitaly.serve_each(move || {
        let listener = Arc::clone(&listener);
        async move { listener.accept().await.map(|(io, _)| io) }
    });
    assert_eq!(repository.resolve().await, Ok(None));
}

#[tokio::test(start_paused = true)]
async fn silent_server_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let gitaly = TestGitaly::new();
    let repository = repository(&gitaly, server(format!("tcp://{address}")), None);
    let problem = unavailable(repository.resolve().await.unwrap_err());
    assert!(!problem.is_empty());
}
