//! The check of a template beside the configuration of an agent.

use std::path::Path;

use environment_templates::EnvironmentTemplate;
use proto::agent_configuration::TemplateFile;

/// Returns the problem of a template, which fails the jobs of environments.
pub fn check_template(template: &TemplateFile) -> Option<String> {
    let error = match &template.text {
        Ok(text) => EnvironmentTemplate::parse(Path::new(&template.path), text).err()?.to_string(),
        Err(what) => what.clone(),
    };
    Some(format!("{error}: jobs of environments with resource_management fail until it is correct"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_template_is_reported_with_its_place() {
        let check = |text: Result<&str, &str>| {
            let text = text.map(str::to_owned).map_err(str::to_owned);
            check_template(&TemplateFile { path: "t/default.yaml".to_owned(), text })
        };
        assert_eq!(check(Ok(environment_templates::DEFAULT_TEMPLATE)), None);
        let problem = check(Ok("objects: []")).unwrap();
        assert!(problem.starts_with("t/default.yaml:1:10: objects: "), "{problem}");
        let problem = check(Err("it is too large")).unwrap();
        assert!(problem.starts_with("it is too large: jobs of environments"), "{problem}");
    }
}
