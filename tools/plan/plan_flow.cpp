// SPDX-License-Identifier: Apache-2.0

// Draws the flow from senders over groups to receivers, as SVG.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tools/plan/plan_forms.hpp"
#include "tools/plan/plan_picture.hpp"

namespace sparsecast::tools {
namespace {

constexpr double kWidth = 1240;
constexpr double kBoxWidth = 12;
constexpr double kLeft = 250;
constexpr double kMiddle = (kWidth - kBoxWidth) / 2;
constexpr double kRight = kWidth - kLeft - kBoxWidth;
constexpr double kTop = 30;
constexpr double kGap = 5;
constexpr double kLeastHeight = 12;  ///< Minimum height of a box; a line of text fits beside it.
constexpr double kLeastBand = 0.7;
constexpr double kHeadingHeight = 20;
constexpr std::size_t kMostLabel = 36;  ///< Maximum length of a label in bytes.

/// One column of boxes; bands enter and leave each box one below the other.
struct Column {
  std::vector<double> top;
  std::vector<double> height;
  double end = 0;

  void lay_out(const std::vector<PictureBox>& boxes, const std::vector<double>& heights) {
    double y = kTop;
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      if (!boxes[i].heading.empty()) y += kHeadingHeight;
      top.push_back(y);
      height.push_back(std::max(kLeastHeight, heights[i]));
      y += height.back() + kGap;
    }
    end = y;
  }
  void move(double down) {
    for (double& y : top) y += down;
  }
};

/// Returns the pixels for a byte at which all bands of one half fill `height`.
double scale_of(const std::vector<PictureBand>& bands, double height) {
  double sum = 0;
  for (const PictureBand& band : bands) sum += band.bytes;
  return sum > 0 ? height / sum : 0;
}

/// Returns 1, 2 or 5 times a power of ten that is at most about 40 pixels long.
double nice_bytes(double scale) {
  const double most = 40 / scale;
  const double power = std::pow(10, std::floor(std::log10(most)));
  for (const double factor : {5.0, 2.0}) {
    if (factor * power <= most) return factor * power;
  }
  return power;
}

std::string clipped(const std::string& text) {
  if (text.size() <= kMostLabel) return text;
  std::size_t cut = kMostLabel - 1;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xc0U) == 0x80U) --cut;  // between characters of UTF-8
  return text.substr(0, cut) + "…";
}

class FlowDrawing {
 public:
  explicit FlowDrawing(const Picture& picture) : picture_(picture) {
    const std::size_t most =
        std::max({picture.senders.size(), picture.groups.size(), picture.receivers.size(), std::size_t{1}});
    const double height = std::clamp(22.0 * static_cast<double>(most), 360.0, 1000.0);
    sent_scale_ = scale_of(picture.sent, height);
    received_scale_ = scale_of(picture.received, height);
    lay_out();
  }

  std::string svg() {
    const double height = std::max({senders_.end, groups_.end, receivers_.end}) + 40;
    out_ = fmt::format(
        "<svg class=\"flow\" viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-labelledby=\"flow-title flow-text\" "
        "xmlns=\"http://www.w3.org/2000/svg\">\n<title id=\"flow-title\">Who sends what to whom</title>\n"
        "<desc id=\"flow-text\">{} boxes of senders, {} of groups, {} of receivers. The table below says the same."
        "</desc>\n",
        kWidth, height, picture_.senders.size(), picture_.groups.size(), picture_.receivers.size());
    add_bands();
    add_boxes(picture_.senders, senders_, kLeft, Side::kSenders);
    add_boxes(picture_.groups, groups_, kMiddle, Side::kGroups);
    add_boxes(picture_.receivers, receivers_, kRight, Side::kReceivers);
    add_scale((kLeft + kMiddle) / 2, height, sent_scale_, "sent");
    add_scale((kMiddle + kRight) / 2, height, received_scale_, "received by a rank");
    return std::move(out_) + "</svg>\n";
  }

 private:
  enum class Side { kSenders, kGroups, kReceivers };

  double sent_height(const PictureBand& band) const { return std::max(kLeastBand, band.bytes * sent_scale_); }
  double received_height(const PictureBand& band) const { return std::max(kLeastBand, band.bytes * received_scale_); }

  void lay_out() {
    std::vector<double> left(picture_.senders.size(), 0);
    std::vector<double> into(picture_.groups.size(), 0);
    std::vector<double> from(picture_.groups.size(), 0);
    std::vector<double> right(picture_.receivers.size(), 0);
    for (const PictureBand& band : picture_.sent) {
      left[band.from] += sent_height(band);
      into[band.to] += sent_height(band);
    }
    for (const PictureBand& band : picture_.received) {
      from[band.from] += received_height(band);
      right[band.to] += received_height(band);
    }
    for (std::size_t i = 0; i < into.size(); ++i) into[i] = std::max(into[i], from[i]);
    senders_.lay_out(picture_.senders, left);
    groups_.lay_out(picture_.groups, into);
    receivers_.lay_out(picture_.receivers, right);
    const double end = std::max({senders_.end, groups_.end, receivers_.end});
    for (Column* column : {&senders_, &groups_, &receivers_}) column->move((end - column->end) / 2);
  }

  void add_bands() {
    std::vector<double> left = senders_.top;
    std::vector<double> into = groups_.top;
    std::vector<double> from = groups_.top;
    std::vector<double> right = receivers_.top;
    for (const PictureBand& band : picture_.sent) {
      const double height = sent_height(band);
      add_band(kLeft + kBoxWidth, left[band.from], kMiddle, into[band.to], height, band.to, band.title);
      left[band.from] += height;
      into[band.to] += height;
    }
    for (const PictureBand& band : picture_.received) {
      const double height = received_height(band);
      add_band(kMiddle + kBoxWidth, from[band.from], kRight, right[band.to], height, band.from, band.title);
      from[band.from] += height;
      right[band.to] += height;
    }
  }

  void add_band(double x0, double y0, double x1, double y1, double height, std::size_t group,
                const std::string& title) {
    const double middle = (x0 + x1) / 2;
    out_ += fmt::format(
        "<path class=\"band\" fill=\"{0}\" d=\"M{1:.1f} {2:.1f}C{3:.1f} {2:.1f} {3:.1f} {4:.1f} {5:.1f} {4:.1f}"
        "V{6:.1f}C{3:.1f} {6:.1f} {3:.1f} {7:.1f} {1:.1f} {7:.1f}Z\"><title>{8}</title></path>\n",
        group_colour(group), x0, y0, middle, y1, x1, y1 + height, y0 + height, escape_markup(title));
  }

  void add_boxes(const std::vector<PictureBox>& boxes, const Column& column, double x, Side side) {
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      const std::string fill = side == Side::kGroups ? fmt::format(" fill=\"{}\"", group_colour(i)) : " class=\"box\"";
      const double text_x = side == Side::kSenders ? x - 8 : x + kBoxWidth + 8;
      const char* anchor = side == Side::kSenders ? "end" : "start";
      out_ += fmt::format("<g><title>{}</title><rect{} x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.0f}\" height=\"{:.1f}\"/>",
                          escape_markup(boxes[i].title), fill, x, column.top[i], kBoxWidth, column.height[i]);
      out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text></g>\n", text_x,
                          column.top[i] + column.height[i] / 2 + 4, anchor, escape_markup(clipped(boxes[i].label)));
      if (boxes[i].heading.empty()) continue;
      out_ += fmt::format("<text class=\"heading\" x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", text_x,
                          column.top[i] - 6, anchor, escape_markup(clipped(boxes[i].heading)));
    }
  }

  /// Draws the thickness of a band of a round number of bytes.
  void add_scale(double x, double height, double scale, const char* what) {
    if (scale <= 0) return;
    const double bytes = nice_bytes(scale);
    const double thick = bytes * scale;
    out_ += fmt::format(
        "<rect class=\"box\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"5\" height=\"{:.1f}\"/>"
        "<text x=\"{:.1f}\" y=\"{:.1f}\">{} {}</text>\n",
        x - 60, height - 4 - thick, thick, x - 48, height - 6, human_size(bytes), what);
  }

  const Picture& picture_;
  double sent_scale_ = 0;
  double received_scale_ = 0;
  Column senders_;
  Column groups_;
  Column receivers_;
  std::string out_;
};

}  // namespace

std::string flow_svg(const Picture& picture) { return FlowDrawing(picture).svg(); }

std::string group_colour(std::size_t i) {
  // Steps of the golden angle keep neighbours apart, however many there are.
  return fmt::format("hsl({:.0f},60%,50%)", std::fmod(210 + 137.508 * static_cast<double>(i), 360));
}

}  // namespace sparsecast::tools
