//! The Lua scripts that run in Redis. Each file begins with its job, its arguments and its result.

use redis::Script;

macro_rules! scripts {
    ($($name:ident)*) => {
        /// The scripts of this crate. The library sends each text once to a server, and its digest afterwards.
        #[derive(Debug)]
        pub(super) struct Scripts {
            $(pub(super) $name: Script,)*
        }

        impl Scripts {
            pub(super) fn new() -> Self {
                Self { $($name: Script::new(include_str!(concat!("scripts/", stringify!($name), ".lua"))),)* }
            }
        }
    };
}

scripts! { admit check cleanup heartbeat instances join leave lookup members notify publish stage }

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    fn commands(script: &str) -> BTreeSet<&str> {
        let calls = script.split("call('").skip(1);
        calls.map(|rest| rest.split('\'').next().unwrap()).collect()
    }

    #[test]
    fn check_tries_every_command_of_the_scripts() {
        let check = include_str!("scripts/check.lua");
        let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/src/redis/scripts")).unwrap();
        for file in files.map(|file| file.unwrap().path()).filter(|file| !file.ends_with("check.lua")) {
            for command in commands(&std::fs::read_to_string(&file).unwrap()) {
                assert!(check.contains(&format!("{{ '{command}'")), "{command} of {}", file.display());
            }
        }
    }
}
