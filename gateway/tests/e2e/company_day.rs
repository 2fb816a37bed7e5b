//! A day of a company that uses GitLab, from the push of a developer to the evening on which a person leaves. Its parts have tests of their own;
//! here one configuration serves them all, one after the other.

use std::{
    fs,
    path::PathBuf,
    process::{Command, Output},
};

use kas_testing::{
    gitaly::{TestFile, TestGitaly},
    page_login::APPLICATION,
};
use serde_json::{Value, json};
use testing::gitlab::{Account, AgentAccess, Job, Membership, OpenMergeRequest, User};

use crate::support::{
    Agent, AgentOptions, Cluster, GitLab, HttpResponse, Installation, Kas, Namespace, Process, curl,
    eventually,
};

/// The project of GitLab with the configuration of the agent and the manifests.
const PROJECT: &str = "group/project";
/// Its id.
const PROJECT_ID: u64 = 7;
/// The words for a pod whose program has ended with the code 3.
const CAUSE: &str = "the last time with exit code 3";
/// The token of kas for notes in merge requests.
const BOT: &str = "glpat-bot";
/// The token of a job that carol has started.
const JOB_OF_CAROL: &str = "job-of-carol";
/// The agent in paths and commands.
const AGENT: &str = "42";
/// The settings of the application. The deletion of nearly all of them needs an approval.
const SETTINGS: usize = 10;

struct Company {
    gitlab: GitLab,
    gitaly: TestGitaly,
    installation: Installation,
    staging: Namespace,
    production: Namespace,
    agent: Option<Agent>,
}

/// A person with a browser in which the page is open.
struct Person<'a> {
    company: &'a Company,
    cookie: String,
}

impl Company {
    fn or_skip() -> Option<Self> {
        let cluster = Cluster::or_skip()?;
        let [staging, production] = ["staging", "production"].map(|topic| cluster.namespace(topic));
        let gitlab = GitLab::start();
        let configuration = configuration(&staging, &production);
        let gitaly = gitlab.serve_project(&[(".gitlab/agents/gitlab/config.yaml", &configuration)]);
        employ(&gitlab);
        let installation = Installation::start(&cluster.kubeconfig, |options, certificates| {
            let mut section = gitlab.section();
            section["external_url"] = json!(gitlab.standin.url());
            section["login"] = json!({"client_id": APPLICATION});
            let token = certificates.authority.with_file_name("comment-token");
            fs::write(&token, format!("{BOT}\n")).unwrap();
            section["comment_token_file"] = json!(token);
            let rules = certificates.authority.with_file_name("disabled.yaml");
            fs::write(&rules, "rules: []\n").unwrap();
            options.sections.push(("disabled", json!({"file": rules})));
            options.sections.push(("gitlab", section));
            options.sections.push(("web", json!({"listen": {"address": "127.0.0.1:0"}})));
            options.configuration = Some(json!({"poll_period": "1s"}));
            options.kubernetes_api.push(("allowed_agent_cache_ttl", json!("1s")));
        });
        fs::write(installation.directory().join("job-token"), format!("ci:{AGENT}:job")).unwrap();
        for namespace in [&staging, &production] {
            let group = format!("--group=gitlab:project_role:{}:developer", PROJECT_ID);
            namespace.kubectl.ok(&["create", "rolebinding", "developers", "--clusterrole=view", &group]);
        }
        Some(Self { gitlab, gitaly, installation, staging, production, agent: None })
    }

    /// Starts the agent of GitLab.
    fn start_agent(&mut self) {
        let pod_namespace = Some(self.staging.name.clone());
        let options = AgentOptions { pod_namespace, ..self.installation.agent_options.clone() };
        self.agent = Some(self.gitlab.start_agent_with(&self.installation, &options));
    }

    /// Commits a version of the application, with this many settings.
    fn commit(&self, branch: &str, script: &str, settings: usize) -> String {
        let text = |namespace: &Namespace| manifests(&namespace.name, script, settings);
        let [staging, production] = [&self.staging, &self.production].map(text);
        self.gitaly.repository.commit(
            branch,
            &[
                ("manifests/staging.yaml", TestFile::Content(staging.as_bytes())),
                ("manifests/production.yaml", TestFile::Content(production.as_bytes())),
            ],
        )
    }

    /// Runs a command of kas in the job, which has nothing but `CI_JOB_TOKEN`.
    fn job(&self, arguments: &[&str]) -> Output {
        let mut command: Command = Kas::command();
        command.args(arguments).args(["--server", &self.installation.kas.url("")]);
        let token: PathBuf = self.installation.directory().join("job-token");
        command.arg("--token-file").arg(token).output().unwrap()
    }

    /// Disables a caller, as the operator of kas does.
    fn disable(&self, caller: &str) {
        let rules = self.installation.directory().join("disabled.yaml");
        let mut command: Command = Kas::command();
        command.args(["disable", "--caller", caller, "--reason", "account blocked", "--file"]).arg(rules);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Returns the status of the manifests, as the job sees it.
    fn status(&self) -> Value {
        let output = self.job(&["gitops", "show", PROJECT, "--agent", AGENT, "--output", "json"]);
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    fn settings(&self, namespace: &Namespace) -> usize {
        let list = ["get", "configmap", "-l", "e2e=company", "--output=name"];
        namespace.kubectl.ok(&list).lines().count()
    }

    /// Opens a watch of the settings in a namespace with a credential of GitLab, without the page.
    fn watch(&self, namespace: &Namespace, headers: &[&str]) -> Process {
        let url = self.installation.kas.url(&format!("/k8s-proxy{}", watch_path(namespace)));
        let headers = headers.iter().flat_map(|header| ["--header", header]);
        follow(&headers.chain([&*url]).collect::<Vec<_>>())
    }

    fn page(&self, path: &str) -> String {
        format!("http://localhost:{}{path}", self.installation.kas.web().port())
    }

    /// Logs a person in at GitLab.
    fn log_in(&self, username: &str) -> Person<'_> {
        let begin = curl(&[
            "--header",
            "Sec-Fetch-Site: same-origin",
            &self.page("/web/v1/login?issuer=gitlab&page=%2Fagents"),
        ]);
        let location = begin.header("location").unwrap_or_else(|| panic!("{begin:?}"));
        let back = format!("/web/v1/callback/gitlab?{}", self.gitlab.standin.authorize(location, username));
        let cookie = format!("Cookie: {}", begin.cookie("__Host-kas-login"));
        let end = curl(&["--header", &cookie, "--header", "Sec-Fetch-Site: cross-site", &self.page(&back)]);
        assert_eq!(end.status, 303, "{}", end.text());
        Person { company: self, cookie: format!("Cookie: {}", end.cookie("__Host-kas")) }
    }
}

impl Person<'_> {
    fn arguments<'a>(&'a self, url: &'a str) -> [&'a str; 7] {
        ["--header", &self.cookie, "--header", "Kas-Web: 1", "--header", "Sec-Fetch-Site: same-origin", url]
    }

    fn get(&self, path: &str) -> HttpResponse {
        curl(&self.arguments(&self.company.page(path)))
    }

    fn post(&self, path: &str) -> HttpResponse {
        let url = self.company.page(path);
        curl(&[&self.arguments(&url)[..], &["--request", "POST"]].concat())
    }

    /// Opens a watch of the settings in a namespace.
    fn watch(&self, namespace: &Namespace) -> Process {
        let path = format!("/agents/{AGENT}/kubernetes{}", watch_path(namespace));
        follow(&self.arguments(&self.company.page(&path)))
    }
}

fn watch_path(namespace: &Namespace) -> String {
    format!("/api/v1/namespaces/{}/configmaps?watch=true", namespace.name)
}

/// Starts curl with a watch, and waits until it has begun.
fn follow(arguments: &[&str]) -> Process {
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--no-buffer"]).args(arguments);
    let watch = Process::start("curl", &mut command);
    watch.line("the watch has begun", |line| line.contains("\"ADDED\""));
    watch
}

/// Returns the configuration of the agent.
fn configuration(staging: &Namespace, production: &Namespace) -> String {
    json!({
        "gitops": {"manifest_projects": [{
            "id": PROJECT, "paths": [{"glob": "/manifests/*.yaml"}], "default_namespace": staging.name, "interval": "200ms",
            "merge_request_previews": true,
        }]},
        "user_access": {"access_as": {"user": {}}, "projects": [{"id": PROJECT}]},
        "environments": [
            {"slug": "staging", "project": PROJECT, "tier": "staging", "namespace": staging.name},
            {"slug": "production", "project": PROJECT, "tier": "production", "namespace": production.name},
        ],
    })
    .to_string()
}

/// Adds the people of the company to GitLab: the developers alice, carol and dave, the maintainer bob, and the jobs of their project.
fn employ(gitlab: &GitLab) {
    let mut state = gitlab.standin.state();
    let roles = ["reporter", "developer"].map(str::to_owned).to_vec();
    let projects = vec![Membership { id: PROJECT_ID, roles }];
    let access = AgentAccess::User { projects, groups: Vec::new() };
    let carol = User::new(13, "carol").with_token("glpat-carol");
    let dave = User::new(14, "dave").with_token("glpat-dave").with_session("dave-cookie", "dave-csrf");
    state.users.extend([User::new(10, "alice"), User::new(11, "bob")]);
    state.users.extend([carol, dave].map(|user| user.with_access(GitLab::AGENT, access.clone())));
    state.users.push(User::new(12, "bot").with_api_token(BOT, PROJECT_ID));
    let oauth = &mut state.oauth;
    oauth.applications.insert(APPLICATION.to_owned(), None);
    oauth.ids.insert("project.group/project".to_owned(), PROJECT_ID);
    for (user, level) in [("alice", 30), ("bob", 40), ("carol", 30), ("dave", 30)] {
        oauth.set_access(user, "project.group/project", level);
    }
    let job = |id| Job::new(id, PROJECT_ID).with_agent(GitLab::AGENT, json!({"access_as": {"agent": {}}}));
    state.add_job("job", job(3).with_environment("production", "production"));
    state.add_job(JOB_OF_CAROL, job(4));
}

/// Returns the manifests of the application in a namespace: its Deployment, whose pod runs a script, and settings.
fn manifests(namespace: &str, script: &str, settings: usize) -> String {
    let pod = json!({
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": false,
        "containers": [{
            "name": "main", "image": "busybox:1.35", "imagePullPolicy": "Never", "command": ["sh", "-c", script],
        }],
    });
    let labels = json!({"app": "web"});
    let deployment = json!({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    });
    let setting = |number| {
        json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": format!("setting-{number}"), "namespace": namespace, "labels": {"e2e": "company"}},
            "data": {"key": "value"},
        })
    };
    let objects = [deployment].into_iter().chain((0..settings).map(setting));
    objects.map(|object| format!("---\n{object}\n")).collect()
}

#[test]
fn company_deploys_finds_a_fault_and_lets_a_person_go() {
    let Some(mut company) = Company::or_skip() else { return };

    // A developer has pushed a branch. The merge request shows what it would change in both namespaces.
    company.commit("main", "sleep 3600", 1);
    let sha = company.commit("feature", "sleep 3600", SETTINGS);
    let request = OpenMergeRequest {
        project: PROJECT_ID,
        number: 12,
        source_project: PROJECT_ID,
        target: "main".to_owned(),
        sha,
    };
    company.gitlab.standin.state().merge_requests.push(request);
    company.start_agent();
    let [staging, production] = [&company.staging, &company.production];
    eventually("the merge request has a note", || {
        let state = company.gitlab.standin.state();
        let mut notes = state.notes.iter().filter(|note| note.merge_request == 12).map(|note| &note.body);
        notes.any(|text| {
            [staging, production]
                .iter()
                .all(|namespace| text.contains(&format!("{}/setting-9", namespace.name)))
        })
    });

    // The merge deploys to staging and production, and its job waits until both are healthy.
    company.gitlab.standin.state().merge_requests.clear();
    let (alice, bob) = (company.log_in("alice"), company.log_in("bob"));
    let merged = company.commit("main", "sleep 3600", SETTINGS);
    eventually("the merge is deployed", || company.status()["synced"]["id"] == *merged);
    for namespace in [staging, production] {
        let output = company.job(&["health", AGENT, "--namespace", &namespace.name, "--wait", "1m"]);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(company.settings(namespace), SETTINGS);
    }

    // A commit that removes nearly all settings waits. A developer sees the plan, and a maintainer approves it.
    company.commit("main", "sleep 3600", 1);
    eventually("the deletion is held", || company.status()["state"] == "held");
    assert_eq!(company.settings(production), SETTINGS);
    let project = format!("/agents/{AGENT}/gitops/v1/projects/group%2Fproject");
    let seen = alice.get(&project).json();
    let approve = format!("{project}/approve?code={}", seen["held"]["code"].as_str().unwrap());
    let refused = alice.post(&approve);
    assert_eq!((refused.status, refused.header("kas-error")), (403, Some("forbidden")), "{}", refused.text());
    assert_eq!(company.settings(production), SETTINGS);
    assert_eq!(bob.post(&approve).status, 202);
    eventually("the settings are deleted", || {
        company.settings(staging) == 1 && company.settings(production) == 1
    });

    // The next version crashes. The page names the pod and the reason, and a job fails.
    company.commit("main", "echo no database >&2; exit 3", 1);
    let health = format!("/agents/{AGENT}/graph/v1/health?namespace={}", production.name);
    eventually("the page shows the cause", || {
        let text = alice.get(&health).text();
        text.contains(CAUSE) && text.contains("\"Pod\"")
    });
    eventually("a job fails", || {
        let output = company.job(&["health", AGENT, "--namespace", &production.name]);
        output.status.code() == Some(1) && String::from_utf8_lossy(&output.stdout).contains(CAUSE)
    });
    eventually("the page shows what the pod has printed", || {
        let pods = production.kubectl.ok(&["get", "pods", "-l", "app=web", "--output=name"]);
        let logs = pods.lines().filter_map(|pod| pod.strip_prefix("pod/")).map(|pod| {
            let namespace = &production.name;
            bob.get(&format!("/agents/{AGENT}/kubernetes/api/v1/namespaces/{namespace}/pods/{pod}/log"))
        });
        logs.map(|log| log.text()).any(|text| text.contains("no database"))
    });

    // An administrator blocks carol, which drops her jobs, and deletes dave: all streams of both end, and the page forgets them.
    let (carol, dave) = (company.log_in("carol"), company.log_in("dave"));
    let job = format!("Authorization: Bearer ci:{AGENT}:{JOB_OF_CAROL}");
    let token_of_carol = format!("Authorization: Bearer pat:{AGENT}:glpat-carol");
    let token = format!("Authorization: Bearer pat:{AGENT}:glpat-dave");
    let id = format!("Gitlab-Agent-Id: {AGENT}");
    let cookie = ["Cookie: _gitlab_kas=dave-cookie", &*id, "X-Csrf-Token: dave-csrf"];
    let mut watches = [
        ("page of carol", carol.watch(production)),
        ("job of carol", company.watch(production, &[&job])),
        ("page of dave", dave.watch(production)),
        ("token of dave", company.watch(production, &[&token])),
        ("cookie of dave", company.watch(production, &cookie)),
    ];
    let mut of_token = company.watch(production, &[&token_of_carol]);
    {
        let mut state = company.gitlab.standin.state();
        state.set_account("carol", Account::Blocked);
        state.jobs.get_mut(JOB_OF_CAROL).unwrap().finished = true;
        state.delete_user("dave");
    }
    for (of, watch) in &mut watches {
        eventually(&format!("the watch ends: {of}"), || !watch.runs());
    }
    for person in [&carol, &dave] {
        assert_eq!(person.get(&project).status, 401);
        assert_eq!(person.get("/web/v1/session").status, 204, "there is no session");
    }
    // GitLab accepts the personal access token of a blocked user, so that the operator of kas disables carol.
    assert!(of_token.runs(), "the token of carol goes on");
    company.disable("gitlab:user:carol");
    eventually("the watch with the token of carol ends", || !of_token.runs());

    // Alice leaves the company: her watch ends, and nothing of the agent is left to her. Bob goes on.
    let (mut of_alice, mut of_bob) = (alice.watch(production), bob.watch(production));
    company.gitlab.standin.state().oauth.set_access("alice", "project.group/project", 0);
    eventually("the watch of alice ends", || !of_alice.runs());
    for path in [&project, &health, &format!("/agents/{AGENT}/kubernetes/version")] {
        assert_eq!(alice.get(path).status, 403, "{path}");
    }
    assert_eq!(alice.get("/web/v1/agents").json()["agents"], json!([]));
    assert!(of_bob.runs() && bob.get(&project).status == 200);
    of_bob.kill();
    company.gitlab.standin.assert_no_violations();
}
