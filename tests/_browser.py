"""What every test of a page in a browser does to it."""

import base64
from importlib import resources

AXE = (resources.files("axe_core_python") / "axe.min.js").read_text("utf-8")


def resize(driver, width, height=900):
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def colours(driver, scheme):
    feature = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})


def console(driver, ignored=()):
    """What the page logged since it was asked last, but for what is ``ignored`` and plain notes."""
    lines = [line["message"] for line in driver.get_log("browser") if line["level"] != "INFO"]
    return [line for line in lines if not any(part in line for part in ignored)]


def widths_of_pictures(driver):
    """How wide the pictures of a page are, as they were decoded."""
    return driver.execute_script(
        "return Promise.all([...document.images].map(img => img.decode())).then("
        "() => [...document.images].map(img => img.naturalWidth))"
    )


def boxes_of_labels(driver, drawing):
    """Where a drawing and its labels are: left, right, top and bottom, its own first."""
    return driver.execute_script(
        "const drawn = document.querySelector(arguments[0]);"
        "return [drawn, ...drawn.querySelectorAll('text')].map((one) => {"
        "const {left, right, top, bottom} = one.getBoundingClientRect();"
        "return [left, right, top, bottom]; })",
        drawing,
    )


def complaints(driver, rules=()):
    """What axe-core has against the page as it is now, by all rules or some: rule and element."""
    if not driver.execute_script("return typeof window.axe === 'object'"):
        # as the tools of a developer would, since a page may forbid scripts that are not its own
        driver.execute_cdp_cmd("Runtime.evaluate", {"expression": AXE})
    found = driver.execute_async_script(
        "const [some, done] = arguments;"
        "axe.run({ resultTypes: ['violations'], ...(some.length ? { runOnly: some } : {}) }).then("
        "(r) => done(r.violations.flatMap((v) => v.nodes.map("
        "(n) => `${v.id}: ${n.html.slice(0, 120)}`))), (error) => done([String(error)]))",
        list(rules),
    )
    assert isinstance(found, list)
    return found


def accessible(driver):
    """Complaints by all rules, and of contrast in dark colours."""
    colours(driver, "light")
    found = complaints(driver)
    colours(driver, "dark")
    found += [f"dark: {one}" for one in complaints(driver, ["color-contrast"])]
    colours(driver, "light")
    return found


def print_faults(driver):
    """What would be wrong on paper, printed by someone whose screen is dark."""
    dark = {"name": "prefers-color-scheme", "value": "dark"}
    resize(driver, 718)  # A4 between its margins, in CSS pixels
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": [dark]})
    found = driver.execute_script(
        """
        const style = (one) => getComputedStyle(one), found = [];
        const all = (query) => [...document.querySelectorAll(query)];
        const seen = (query) => all(query).filter((one) => one.checkVisibility());
        if (style(document.body).backgroundColor !== "rgb(255, 255, 255)") found.push("not white");
        if (seen(".top, .controls, .skip").length) found.push("buttons");
        if (all("h2, h3").some((one) => style(one).breakAfter !== "avoid")) found.push("headings");
        if (all(".scroll").some((one) => style(one).overflowY !== "visible")) found.push("cut off");
        for (const one of seen("table, svg, img"))
            if (one.getBoundingClientRect().right > 719)
                found.push(`too wide: ${one.outerHTML.slice(0, 80)}`);
        return found;
        """
    )
    pdf = base64.b64decode(driver.execute_cdp_cmd("Page.printToPDF", {})["data"])
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    resize(driver, 1280)
    return found + ([] if pdf.startswith(b"%PDF") and pdf.count(b"/Page") else ["no pages"])
