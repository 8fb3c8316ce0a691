/// The name of the test in which the closure `F` is, as test binaries take it with `--exact`.
///
/// # Panics
/// If the type is that of something else.
pub fn test_name<F>() -> &'static str {
    // `program::module::test::{{closure}}`; threads are not always named after their tests.
    std::any::type_name::<F>()
        .strip_suffix("::{{closure}}")
        .and_then(|path| path.split_once("::"))
        .map(|(_, test)| test)
        .expect("the body is a closure in a test")
}
