"""PinScope's mark: a pin under a lens. Its blue and amber read well on light and on dark."""

_LENS_AND_PIN = (
    '<circle cx="16" cy="16" r="13" fill="none" stroke="#3A96D0" stroke-width="3"/>'
    '<path d="M16 16v9" stroke="#E8962E" stroke-width="2.6" stroke-linecap="round"/>'
    '<circle cx="16" cy="12.5" r="4.6" fill="#E8962E"/>'
)

ICON = f'<svg xmlns="http://www.w3.org/2000/svg" width="32" height="32" viewBox="0 0 32 32">{_LENS_AND_PIN}</svg>'
LOGO = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="152" height="32" viewBox="0 0 152 32">'
    f"{_LENS_AND_PIN}"
    '<text x="40" y="23" font-family="Source Sans 3, Source Sans Pro, Helvetica, Arial, sans-serif" '
    'font-size="22" font-weight="700" textLength="108" lengthAdjust="spacingAndGlyphs" fill="#3A96D0">'
    "PinScope</text></svg>"
)
