//! Repositories that this machine cannot read are refused before kas starts.

use super::workspace::Workspace;

#[tokio::test]
async fn repository_of_ssh_is_refused_without_the_program() {
    const REPOSITORY: &str = "{url: 'git@git.example.com:group/project.git'}";
    const REASON: &str =
        "url: the program ssh is not installed, and the image of kas does not have it: use https://";
    let workspace = Workspace::new().await;
    let programs = workspace.directory.path().join("programs");
    std::fs::create_dir(&programs).unwrap();
    let check = async || {
        let output =
            workspace.command("check-config kas.yaml").env("PATH", &programs).output().await.unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (kas, identity) = (workspace.read("kas.yaml"), workspace.read("identity.yaml"));
    let agent = format!("name: production, configuration: {{repository: {REPOSITORY}}},");
    let of_an_agent = identity.replacen("name: production,", &agent, 1);
    let of_all =
        kas.replacen("agent:\n", &format!("agent:\n  configuration: {{repository: {REPOSITORY}}}\n"), 1);
    let of_manifests = kas.replacen(
        "agent:\n",
        &format!(
            "agent:\n  gitops: {{repositories: [{{id: a, agents: [production], repository: {REPOSITORY}}}]}}\n"
        ),
        1,
    );
    for (kas, identity) in [(&of_all, &identity), (&of_manifests, &identity), (&kas, &of_an_agent)] {
        workspace.write("kas.yaml", kas);
        workspace.write("identity.yaml", identity);
        let (exit, text) = check().await;
        assert!(exit == Some(64) && text.contains(REASON), "{text}");
        std::fs::write(programs.join("ssh"), "").unwrap();
        let (exit, text) = check().await;
        assert_eq!(exit, Some(0), "{text}");
        std::fs::remove_file(programs.join("ssh")).unwrap();
    }
}
