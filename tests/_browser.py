"""What every test of a page in a browser does to it."""


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
