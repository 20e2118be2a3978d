// The files in page/, compiled in.

#pragma once

namespace normd {

// {{style}} and {{script}} are the placeholders.
extern const char kStatusPageHtml[];
extern const char kStatusPageCss[];
extern const char kStatusPageJs[];

}  // namespace normd
