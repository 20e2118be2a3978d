// The files in page/, compiled in.

#pragma once

namespace normd::load {

// {{style}}, {{data}} and {{script}} are the placeholders.
extern const char kPageHtml[];
extern const char kPageCss[];
extern const char kPageJs[];

}  // namespace normd::load
