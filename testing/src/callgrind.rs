//! Instructions of programs, counted by callgrind.

use std::process::Command;

/// What callgrind has counted in a run.
pub struct Profile {
    /// As callgrind_annotate reads it.
    pub text: String,
}

/// Instructions of a source line, or of the calls from it.
#[derive(Clone, Copy, Debug)]
pub struct Cost<'a> {
    /// The object and the source file that contain the line.
    pub object: &'a str,
    /// See `object`.
    pub file: &'a str,
    /// For calls: the object of the called function, and their number. Their instructions are those
    /// of the called function with its callees, which the profile also lists separately.
    pub calls: Option<(&'a str, u64)>,
    /// The number of instructions.
    pub instructions: u64,
}

impl Profile {
    /// Counts in a program that must succeed; `command` is passed the words to start it with.
    ///
    /// # Errors
    /// The error output.
    pub fn record<E: From<String>>(
        command: impl FnOnce(&[String]) -> Result<Command, E>,
    ) -> Result<Profile, E> {
        let file = std::env::temp_dir().join(format!("efa-{}.callgrind", std::process::id()));
        let mut command = command(&[
            "valgrind".to_owned(),
            "--tool=callgrind".to_owned(),
            // Of programs that execute the measured one, whose profile replaces theirs.
            "--trace-children=yes".to_owned(),
            "--compress-strings=no".to_owned(),
            "--compress-pos=no".to_owned(),
            format!("--callgrind-out-file={}", file.display()),
        ])?;
        let output = command
            .output()
            .map_err(|error| format!("cannot start {:?}: {error}", command.get_program()))?;
        let text = std::fs::read_to_string(&file);
        // The file may not exist, and nothing else uses it.
        let _ = std::fs::remove_file(&file);
        match text {
            Ok(text) if output.status.success() => Ok(Profile { text }),
            _ => {
                let errors = String::from_utf8_lossy(&output.stderr);
                Err(format!("callgrind failed (is valgrind installed?): {errors}").into())
            }
        }
    }

    /// All instructions.
    pub fn total(&self) -> u64 {
        let own = self.costs().filter(|cost| cost.calls.is_none());
        own.map(|cost| cost.instructions).sum()
    }

    /// The instructions of each line.
    pub fn costs(&self) -> impl Iterator<Item = Cost<'_>> {
        let (mut object, mut file, mut called, mut calls) = ("", "", None, None);
        self.text.lines().filter_map(move |line| {
            match line.split_once('=') {
                Some(("ob", name)) => object = name,
                Some(("cob", name)) => called = Some(name),
                Some(("fl" | "fi" | "fe", name)) => file = name,
                Some(("calls", rest)) => calls = rest.split_whitespace().next()?.parse().ok(),
                _ if line.starts_with(|c: char| c.is_ascii_digit()) => {
                    let calls = calls.take();
                    return Some(Cost {
                        object,
                        file,
                        calls: calls.map(|count| (called.take().unwrap_or(object), count)),
                        instructions: line.split_whitespace().nth(1)?.parse().ok()?,
                    });
                }
                _ => {}
            }
            None
        })
    }
}
