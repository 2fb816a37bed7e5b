//! The scripts that run in Redis. Each begins with what it does, what it is given and what it answers.

use redis::Script;

macro_rules! scripts {
    ($($name:ident)*) => {
        /// Each is sent once to a server, and is named by its digest then.
        #[derive(Debug)]
        pub(super) struct Scripts {
            $(pub(super) $name: Script,)*
        }

        impl Scripts {
            pub(super) fn new() -> Self {
                Self { $($name: Script::new(include_str!(concat!("lua/", stringify!($name), ".lua"))),)* }
            }
        }
    };
}

scripts! { admit beat bury change check fill holdings join leave lookup members }

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    fn commands(script: &str) -> BTreeSet<&str> {
        let calls = script.split("call('").skip(1);
        calls.map(|rest| rest.split('\'').next().unwrap()).collect()
    }

    #[test]
    fn what_is_tried_out_is_what_is_used() {
        let check = include_str!("lua/check.lua");
        let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/redis/lua")).unwrap();
        for file in files.map(|file| file.unwrap().path()).filter(|file| !file.ends_with("check.lua")) {
            for command in commands(&std::fs::read_to_string(&file).unwrap()) {
                assert!(check.contains(&format!("{{ '{command}'")), "{command} of {}", file.display());
            }
        }
    }
}
