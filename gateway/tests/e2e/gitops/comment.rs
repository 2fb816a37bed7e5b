//! The job of docs/gitops.md that comments on merge requests.

use std::{fs, process::Command};

use testing::gitlab::{PostedNote, Project, User};

use super::*;
use crate::support::{GitLab, Kas};

/// A token of a user who may write to the project.
const TOKEN: &str = "glpat-notes";

/// Returns the script of the job, as the runner of GitLab joins its lines.
fn script() -> String {
    let text = include_str!("../../../../docs/gitops.md");
    let block = text.split("```").find_map(|block| block.strip_prefix("yaml\npreview:"));
    let job: Value = serde_saphyr::from_str(block.unwrap()).unwrap();
    let lines: Vec<&str> =
        job["script"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect();
    lines.join("\n")
}

#[test]
fn job_of_the_documentation_comments_on_a_merge_request() {
    let Some(world) = World::start_or_skip("gitops-comment", |options, repository| {
        let source = json!({"id": "group/shop", "agents": [AGENT], "repository": {"url": repository.path}});
        options.gitops.push(("repositories", json!([source])));
    }) else {
        return;
    };
    let gitlab = GitLab::start();
    gitlab.standin.state().projects.push(Project::new(7, "group/shop"));
    gitlab.standin.state().users.push(User::new(1, "bot").with_api_token(TOKEN, 7));
    let secret = |value: &str| {
        format!("---\napiVersion: v1\nkind: Secret\nmetadata: {{name: s}}\nstringData: {{key: {value}}}\n")
    };
    let files = config_map("a", "one") + &secret("hunter2");
    world.configure("id: group/shop", &[("manifests/app.yaml", Some(&files))]);
    eventually("the project is synced", || world.status_of("group/shop")["state"] == "synced");
    let directory = TempDir::new().unwrap();
    let token = directory.path().join("token");
    fs::write(&token, secrecy::ExposeSecret::expose_secret(&world.installation.tokens.ops)).unwrap();
    let run = |commit: &str, notes_token: &str| {
        let programs = Kas::program().parent().unwrap().display().to_string();
        let mut shell = Command::new("bash");
        shell.args(["-e", "-o", "pipefail", "-c", &script()]).current_dir(directory.path()).envs([
            ("PATH", format!("{programs}:{}", std::env::var("PATH").unwrap())),
            ("KAS_SERVER", world.installation.kas.url("")),
            ("KAS_TOKEN_FILE", token.display().to_string()),
            ("NOTES_TOKEN", notes_token.to_owned()),
            ("CI_COMMIT_SHA", commit.to_owned()),
            ("CI_API_V4_URL", format!("{}/api/v4", gitlab.standin.url())),
            ("CI_PROJECT_ID", "7".to_owned()),
            ("CI_MERGE_REQUEST_IID", "12".to_owned()),
        ]);
        shell.output().unwrap()
    };
    let notes = || gitlab.standin.state().notes.clone();

    let changed = config_map("a", "two & more") + &secret("hunter3") + &config_maps(&["b"]);
    world.repository.commit_to_branch("feature", &[("manifests/app.yaml", &changed)]);
    let output = run(&world.repository.commit_id("feature"), TOKEN);
    assert!(output.status.success(), "{output:?}");
    let [PostedNote { project, merge_request, body: text, .. }] = &*notes() else { panic!("{:?}", notes()) };
    assert_eq!((*project, *merge_request), (7, 12));
    for expected in ["**1 to create, 2 to change", "two & more", "*** (after)"] {
        assert!(text.contains(expected), "{expected} is not in {text}");
    }
    for value in ["hunter", "aHVudGVy"] {
        assert!(!text.contains(value) && !String::from_utf8_lossy(&output.stdout).contains(value), "{text}");
    }

    // No change is a note, too. A commit that a sync would refuse, and a token without rights, fail the job.
    assert!(run(&world.repository.commit_id("main"), TOKEN).status.success());
    assert_eq!(notes().len(), 2);
    assert!(!run(&world.repository.commit_id("main"), "glpat-other").status.success());
    world.repository.commit_to_branch("broken", &[("manifests/app.yaml", "kind: [\n")]);
    assert!(!run(&world.repository.commit_id("broken"), TOKEN).status.success());
    assert_eq!(notes().len(), 2);
}
